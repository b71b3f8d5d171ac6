package ctgc

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/hivetest"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// room is half of what is promised: a flow that a full map refused finds room within a second, if anything in the map is over. The
// other half belongs to the pass, which takes no virtual time.
const room = 600 * time.Millisecond

// Programs find a map full at any moment, also while a pass rests between its slices: what is over goes within a second. The many
// signals of a flood do not delay that.
func TestSignals_RoomWithinASecond(t *testing.T) {
	t.Parallel()
	for name, living := range map[string]int{"hardly any flows": 1, "passes of five seconds": 2000} {
		for flood, signals := range map[string]int{"one signal": 1, "flood": 300} {
			t.Run(name+", "+flood, func(t *testing.T) {
				t.Parallel()
				random := testseed.New(t)
				synctest.Test(t, func(t *testing.T) { roomForNewFlows(t, random, living, signals) })
			})
		}
	}
}

func roomForNewFlows(t *testing.T, random *rand.Rand, living, signals int) {
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
		// Every other time right after the pass before, which the next one has to keep its distance from.
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
	if worst > room {
		t.Errorf("there was room after %v, want %v", worst, room)
	}
}
