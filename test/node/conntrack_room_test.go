package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/test/nodekit"
)

// caller begins a new flow of datagrams every few milliseconds, with a socket of its own, and notes which are answered.
type caller struct {
	mu       sync.Mutex  // guards what follows
	answered []time.Time // when answers came
	tries    int
	late     time.Duration // by how much tries came later than they should, in sum
}

// callEvery is how often a caller calls.
const callEvery = 10 * time.Millisecond

// call has one place call a server until the test ends.
func call(t *testing.T, from nodekit.Place, server netip.AddrPort) *caller {
	t.Helper()
	c := &caller{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var listening sync.WaitGroup
	go func() {
		done <- from.Do(func() error {
			for last := time.Now(); ctx.Err() == nil; {
				conn, err := net.Dial("udp", server.String())
				if err != nil {
					return err
				}
				listening.Go(func() { c.listen(conn) })
				if _, err := conn.Write([]byte("?")); err != nil {
					return err
				}
				time.Sleep(callEvery)
				now := time.Now()
				c.mu.Lock()
				c.tries++
				c.late += now.Sub(last) - callEvery
				c.mu.Unlock()
				last = now
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		listening.Wait()
	})
	return c
}

func (c *caller) listen(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answered = append(c.answered, time.Now())
	}
}

// since returns when the first answer came after a moment, and the counts of tries and of lateness.
func (c *caller) since(moment time.Time) (first time.Time, tries int, late time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, at := range c.answered {
		if at.After(moment) {
			return at, c.tries, c.late
		}
	}
	return time.Time{}, c.tries, c.late
}

// waitingForCPU watches a process, and says each time how long its threads could have run since and had no CPU, in sum.
func waitingForCPU(t *testing.T, pid int) (waited func() time.Duration) {
	t.Helper()
	waited, err := nodekit.WaitingForCPU(pid)
	if err != nil {
		t.Fatal(err)
	}
	return waited
}

// A full table is found to have room again within a second of the time when there is something to be collected, whenever in the
// collector's rhythm that is. What the machine kept the agent and the test waiting for a CPU is measured, and comes on top.
func TestPrivilegedConntrack_RoomIsFoundWithinASecond(t *testing.T) {
	t.Parallel()
	const promised, some, rounds = time.Second, 1000, 5
	node := startNode(t, nodekit.Options{})
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	for _, family := range families {
		t.Run(family.name, func(t *testing.T) {
			name := bpf.MapCtEst4
			if family.ipv6 {
				name = bpf.MapCtEst6
			}
			m, outside := ctMap(t, node, name), outsideAddr(family.ipv6)
			server, done := echoServer(t, "udp", b, b.Addr(family.ipv6))
			defer done()
			occupy(t, m, outside, 0, int(m.MaxEntries()), unexpired)
			calls := call(t, a, server)
			for round := range rounds {
				noneAnswered(t, calls)
				time.Sleep(time.Duration(round) * 100 * time.Millisecond) // at first the last pass has just ended, so the next is as far away as can be
				_, _, lateBefore := calls.since(time.Now())
				waited, began := waitingForCPU(t, node.AgentPID()), time.Now()
				occupy(t, m, outside, 0, some, expired)
				var took, slack time.Duration
				eventually(t, func() error {
					first, tries, late := calls.since(began)
					if first.IsZero() {
						return fmt.Errorf("%v after there was room, none of %d flows has passed", time.Since(began), tries)
					}
					took, slack = first.Sub(began), late-lateBefore
					return nil
				})
				slack += waited()
				t.Logf("a new flow passed after %v; %v of waiting for a CPU", took, slack)
				if took > promised+slack {
					t.Errorf("a new flow passed %v after there was room, want at most %v and %v", took, promised, slack)
				}
				occupy(t, m, outside, 0, int(m.MaxEntries()), unexpired)
			}
		})
	}
}

// noneAnswered waits until no new flow passes for a while.
func noneAnswered(t *testing.T, calls *caller) {
	t.Helper()
	eventually(t, func() error {
		began := time.Now()
		time.Sleep(5 * callEvery)
		if first, _, _ := calls.since(began); !first.IsZero() {
			return errors.New("a flow passes a full table")
		}
		return nil
	})
}
