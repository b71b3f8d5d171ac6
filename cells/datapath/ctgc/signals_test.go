package ctgc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// waitBudget is the part of the promised second that waits may take: a flow that a full map has refused gets a slot within a second, if the map has a dead entry. The
// rest is for the pass, which takes no virtual time.
const waitBudget = 600 * time.Millisecond

// Programs may find a map full at any time, also while a pass pauses between its slices: dead flows are deleted within a second. The many signals of a flood
// cause no delay.
func TestSignals_CapacityWithinASecond(t *testing.T) {
	t.Parallel()
	for name, living := range map[string]int{"hardly any flows": 1, "passes of five seconds": 2000} {
		for flood, signals := range map[string]int{"one signal": 1, "flood": 300} {
			t.Run(name+", "+flood, func(t *testing.T) {
				t.Parallel()
				random := testseed.New(t)
				synctest.Test(t, func(t *testing.T) { testFreedSlots(t, random, living, signals) })
			})
		}
	}
}

func testFreedSlots(t *testing.T, random *rand.Rand, living, signals int) {
	fake := newFake()
	put := func(port, left int) {
		fake.mu.Lock()
		defer fake.mu.Unlock()
		if _, err := fake.put([]string{bpf.MapCtEst4, "UDP", fmt.Sprintf("10.1.%d.%d:1000", port/200, port%200+1), "192.0.2.2:53", fmt.Sprint("left=", left)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range living {
		put(i, 1<<20)
	}
	flows := func() int {
		fake.mu.Lock()
		defer fake.mu.Unlock()
		return len(fake.flows[bpf.MapCtEst4])
	}
	h, log := hive.New(append(cells(fake), celltest.Infrastructure())...), hivetest.Logger(t, hivetest.LogLevel(slog.LevelWarn))
	if err := h.Start(log, t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.Stop(log, context.Background()); err != nil {
			t.Error(err)
		}
	}()
	worst := time.Duration(0)
	for i := range 60 {
		// Every second round begins right after the previous pass, from which the next pass must keep its distance.
		time.Sleep(time.Duration(random.Int64N(int64([]time.Duration{10 * time.Second, 100 * time.Millisecond}[i%2]))))
		put(40000, 10)
		fake.mu.Lock()
		fake.now += 20
		fake.mu.Unlock()
		began := time.Now()
		stop := make(chan struct{})
		go func() {
			for range signals {
				select {
				case fake.signals <- bpf.CtSignal{Family: 4}:
				case <-stop:
					return
				}
				select {
				case <-time.After(time.Millisecond):
				case <-stop:
					return
				}
			}
		}()
		for flows() > living && time.Since(began) < time.Minute {
			time.Sleep(time.Millisecond)
		}
		worst = max(worst, time.Since(began))
		close(stop)
	}
	t.Logf("%v at most", worst)
	if worst > waitBudget {
		t.Errorf("there was room after %v, want %v", worst, waitBudget)
	}
}

// Programs send signals faster than the agent reads them: the collector is woken nevertheless, and the reader pauses.
func TestSignals_EndlessFlood_WakesTheCollector(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		health, _ := cell.NewSimpleHealth()
		a := &access{kernel: &floodedKernel{newFake()}, signals: signalState{wake: make(chan struct{}, 1)}}
		ended := make(chan error, 1)
		go func() { ended <- a.receiveSignals(ctx, health) }()
		synctest.Wait()
		if len(a.signals.wake) == 0 {
			t.Error("the collector was not woken")
		}
		if n := a.signals.counts(bpf.MapCtEst4).full; n != signalBatch {
			t.Errorf("%d signals were counted before the pause, want %d", n, signalBatch)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// floodedKernel has a ring buffer that is never empty.
type floodedKernel struct{ *fakeKernel }

func (k *floodedKernel) Signals() (signals, error) {
	return &flood{fakeSignals: fakeSignals{k.fakeKernel}}, nil
}

type flood struct {
	fakeSignals
	reads int
}

// Read never waits. It fails after many reads only so that a reader without a pause fails the test, and does not hang.
func (f *flood) Read(time.Time) (bpf.CtSignal, error) {
	if f.reads++; f.reads > 100*signalBatch {
		return bpf.CtSignal{}, errors.New("the reader does not pause")
	}
	return bpf.CtSignal{Family: 4}, nil
}
