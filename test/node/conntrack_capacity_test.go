package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/test/nodekit"
)

// caller begins a new UDP flow every few milliseconds, with a socket of its own, and records which flows become established: flows whose second datagram gets a
// reply as well.
type caller struct {
	mu       sync.Mutex  // guards the fields below
	answered []time.Time // times of replies
	tries    int
}

// callEvery is the interval between two new flows of a caller.
const callEvery = 10 * time.Millisecond

// call starts a caller in one place towards a server. The caller runs until the test ends.
func call(t *testing.T, from nodekit.NetNS, server netip.AddrPort) *caller {
	t.Helper()
	c := &caller{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var listening sync.WaitGroup
	go func() {
		done <- from.Do(func() error {
			for ctx.Err() == nil {
				conn, err := net.Dial("udp", server.String())
				if err != nil {
					return err
				}
				listening.Go(func() { c.listen(conn) })
				if _, err := conn.Write([]byte("?")); err != nil {
					return err
				}
				c.mu.Lock()
				c.tries++
				c.mu.Unlock()
				time.Sleep(callEvery)
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
	_ = conn.SetReadDeadline(time.Now().Add(noReplyTimeout))
	answer := make([]byte, 1)
	_, err := conn.Read(answer)
	if err == nil {
		_, err = conn.Write([]byte("!"))
	}
	if err == nil {
		_, err = conn.Read(answer)
	}
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answered = append(c.answered, time.Now())
	}
}

// since reports whether a reply arrived after a moment, and returns the number of tries.
func (c *caller) since(moment time.Time) (answered bool, tries int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.answered, func(at time.Time) bool { return at.After(moment) }), c.tries
}

// TestPrivilegedConntrack_ExpiredFlowsFreeCapacity expires some flows of a full table at several moments of the collector's interval. New flows then pass without a restart.
func TestPrivilegedConntrack_ExpiredFlowsFreeCapacity(t *testing.T) {
	t.Parallel()
	const some, rounds = 1000, 5
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
				noReplies(t, calls)
				time.Sleep(time.Duration(round) * 100 * time.Millisecond) // in the first round the last scan has just ended, so the time to the next scan is longest
				began := time.Now()
				occupy(t, m, outside, 0, some, expired)
				eventually(t, func() error {
					if answered, tries := calls.since(began); !answered {
						return fmt.Errorf("%d expired flows of %d are not collected: none of %d new flows has passed", some, m.MaxEntries(), tries)
					}
					return nil
				})
				occupy(t, m, outside, 0, int(m.MaxEntries()), unexpired)
			}
		})
	}
}

// noReplies waits until no new flow passes for a while.
func noReplies(t *testing.T, calls *caller) {
	t.Helper()
	eventually(t, func() error {
		began := time.Now()
		time.Sleep(5 * callEvery)
		if answered, _ := calls.since(began); answered {
			return errors.New("a flow passes a full table")
		}
		return nil
	})
}
