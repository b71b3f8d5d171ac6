package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

// promises returns the parts that measure documented times. They run without other load.
func (b *bench) promises() []part {
	return []part{
		{"promises: capacity in a full conntrack table", b.conntrackCapacity, []figures.Limit{capacityBudget}},
		{"promises: new addresses of the node", b.addresses, []figures.Limit{addressBudget}},
		{"promises: repairs of drift", b.repairs, []figures.Limit{announcedBudget, silentBudget, conflictBudget, conflictCPUBudget}},
		{"promises: changed labels", b.relabel, []figures.Limit{relabelBudget}},
		{"promises: one instant for a change of policy", b.instant, []figures.Limit{lostBudget, instantBudget}},
		{"promises: an unreachable API server", b.apiServer, []figures.Limit{addNoServerBudget, stopBudget, inStepBudget, failOverBudget}},
		{"promises: the plugin without an agent", b.absentAgent, []figures.Limit{addNoAgentBudget, delNoAgentBudget}},
		{"promises: attaching while the agent restarts", b.restart, []figures.Limit{addReplacedBudget, noneBudget}},
		{"promises: stops", b.stops, []figures.Limit{stopBudget}},
		{"promises: faults of the underlay", b.underlayFaults, []figures.Limit{namedBudget}},
		{"promises: loops that hang", b.hangs, []figures.Limit{frozenLoopBudget, frozenTableBudget, stopBudget, secondStopBudget}},
	}
}

// promised reports the median and the maximum of several rounds. The budget limits the maximum. Without any round the budget is missed.
func (b *bench) promised(what string, took []time.Duration, budget figures.Limit) {
	if len(took) == 0 {
		b.report(what, "none succeeded", figures.Value{Number: math.NaN(), Unit: figures.Second}, budget)
		return
	}
	longest := percentile(took, 100)
	b.report(fmt.Sprintf("%s, p50 (max of %d)", what, len(took)), fmt.Sprintf("%s (%s)", show(median(took)), show(longest)),
		figures.Time(longest), budget)
}

// atMost returns the number of rounds of a slow measurement.
func (b *bench) atMost(rounds int) int { return min(b.rounds, rounds) }

// latest is the timeout of an expected event, far above any budget. Its expiry fails the measurement.
const latest = 90 * time.Second

// await calls check until it succeeds, with a pause after each failure.
func await(ctx context.Context, pause time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, latest)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(pause):
		}
	}
}

func waitReady(ctx context.Context, node *nodekit.Node) error {
	ctx, cancel := context.WithTimeout(ctx, latest)
	defer cancel()
	return node.WaitReady(ctx)
}

// responder answers UDP requests at an address of a place until the connection is closed.
func responder(at nodekit.NetNS, addr netip.AddrPort) (conn *net.UDPConn, err error) {
	if err := nodekit.Bind(at, func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
		return err
	}); err != nil {
		return nil, fmt.Errorf("listen at %s: %w", addr, err)
	}
	go func() {
		buffer := make([]byte, 16)
		for {
			n, peer, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort(buffer[:n], peer)
		}
	}()
	return conn, nil
}

const (
	requestPace  = 5 * time.Millisecond
	replyTimeout = 300 * time.Millisecond
)

// requester starts a new UDP flow at a fixed rate, each from its own socket, and records when the second request of a flow gets its reply: only this request
// needs an entry for an established flow.
type requester struct {
	stop func() error // ends the requests; further calls return the same error

	mu      sync.Mutex // guards replies
	replies []time.Time
}

// startRequests sends requests from a place to a server until the caller calls stop.
func startRequests(from nodekit.NetNS, server netip.AddrPort) *requester {
	ctx, cancel := context.WithCancel(context.Background())
	r, done := &requester{}, make(chan error, 1)
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	go func() {
		var open sync.WaitGroup
		defer open.Wait()
		done <- from.Do(func() error {
			for ctx.Err() == nil {
				conn, err := net.Dial("udp", server.String())
				if err != nil {
					return err
				}
				_, _ = conn.Write([]byte("?")) // an unsent request gets no reply
				open.Go(func() { r.receive(conn) })
				time.Sleep(requestPace)
			}
			return nil
		})
	}()
	return r
}

func (r *requester) receive(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(replyTimeout))
	reply := make([]byte, 1)
	_, err := conn.Read(reply)
	if err == nil {
		_, err = conn.Write([]byte("!"))
	}
	if err == nil {
		_, err = conn.Read(reply)
	}
	if err == nil {
		now := time.Now()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.replies = append(r.replies, now)
	}
}

// replied waits for the first reply after a moment and returns the time between them.
func (r *requester) replied(ctx context.Context, moment time.Time) (took time.Duration, err error) {
	err = await(ctx, 2*time.Millisecond, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, at := range r.replies {
			if at.After(moment) {
				took = at.Sub(moment)
				return nil
			}
		}
		return errors.New("no request has a reply")
	})
	return took, err
}

// silent waits until there has been no reply for a while.
func (r *requester) silent(ctx context.Context) error {
	const quiet = 2 * replyTimeout
	return await(ctx, 20*time.Millisecond, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if n := len(r.replies); n > 0 && time.Since(r.replies[n-1]) < quiet {
			return errors.New("requests still have replies")
		}
		r.replies = nil
		return nil
	})
}
