package node_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// oracleTraffic is the traffic of pods that are added and removed.
type oracleTraffic struct {
	began time.Time

	mu        sync.Mutex
	flowing   chan struct{}          // closed while traffic is sent
	resumed   time.Time              // zero during a pause
	flowed    time.Duration          // duration before that
	flows     map[uint64]*oracleFlow // running flows
	made      uint64
	faults    []string
	sent      int // datagrams that had to arrive
	words     int // messages of long connections
	connects  int
	forbidden int // denied tries
}

// startOracleTraffic starts the sender. The traffic pauses until [oracleTraffic.resume].
func startOracleTraffic(t *testing.T) *oracleTraffic {
	tr := &oracleTraffic{began: time.Now(), flowing: make(chan struct{}), flows: map[uint64]*oracleFlow{}}
	ctx, cancel := context.WithCancel(context.Background())
	var sender sync.WaitGroup
	sender.Go(func() { tr.send(ctx) })
	t.Cleanup(func() {
		cancel()
		sender.Wait()
		for _, f := range tr.all() {
			f.end()
		}
	})
	return tr
}

// resume starts the sending of traffic until [oracleTraffic.rest].
func (tr *oracleTraffic) resume() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	close(tr.flowing)
	tr.resumed = time.Now()
}

// rest stops the sending of traffic. Connections stay open.
func (tr *oracleTraffic) rest() {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.flowing = make(chan struct{})
	tr.flowed += time.Since(tr.resumed)
	tr.resumed = time.Time{}
}

// flowedFor returns the duration of traffic without pauses.
func (tr *oracleTraffic) flowedFor() time.Duration {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.resumed.IsZero() {
		return tr.flowed
	}
	return tr.flowed + time.Since(tr.resumed)
}

// await waits until traffic is sent or the context ends.
func (tr *oracleTraffic) await(ctx context.Context) {
	tr.mu.Lock()
	flowing := tr.flowing
	tr.mu.Unlock()
	select {
	case <-flowing:
	case <-ctx.Done():
	}
}

// at returns the time since the start of the traffic, including pauses.
func (tr *oracleTraffic) at() time.Duration { return time.Since(tr.began).Round(time.Millisecond) }

func (tr *oracleTraffic) fault(format string, args ...any) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.faults = append(tr.faults, fmt.Sprintf("%v ", tr.at())+fmt.Sprintf(format, args...))
}

// takeFaults returns the faults since the last call.
func (tr *oracleTraffic) takeFaults() (faults []string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	faults, tr.faults = tr.faults, nil
	return faults
}

func (tr *oracleTraffic) count(counter *int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	*counter++
}

// all returns the running flows, in the order of their start.
func (tr *oracleTraffic) all() []*oracleFlow {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var all []*oracleFlow
	for _, id := range slices.Sorted(maps.Keys(tr.flows)) {
		all = append(all, tr.flows[id])
	}
	return all
}

// send sends one datagram of each flow in oracleSlots ticks. It catches up at most oracleDebt of time without a CPU.
func (tr *oracleTraffic) send(ctx context.Context) {
	ticker := time.NewTicker(oracleTick)
	defer ticker.Stop()
	slot, last, due := uint64(0), time.Duration(0), time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		tr.await(ctx)
		now := tr.flowedFor()
		due += min(now-last, oracleDebt)
		last = now
		for ; due >= oracleTick; due -= oracleTick {
			for _, f := range tr.all() {
				if f.id%oracleSlots == slot%oracleSlots {
					f.send()
				}
			}
			slot++
		}
	}
}

// serve lets a pod receive the datagrams of flows and echo the data of connections, until stop is called.
func (tr *oracleTraffic) serve(p *nodekit.Pod) (stop func(), err error) {
	var closers []io.Closer
	var running sync.WaitGroup
	stop = func() {
		for _, c := range closers {
			_ = c.Close()
		}
		running.Wait()
	}
	for _, addr := range addrsOf(p) {
		at := netip.AddrPortFrom(addr, oraclePort)
		if err := p.Do(func() error {
			conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			if err != nil {
				return err
			}
			closers = append(closers, conn)
			running.Go(func() { tr.receive(conn) })
			listener, err := net.Listen("tcp", at.String())
			if err != nil {
				return err
			}
			closers = append(closers, listener)
			running.Go(func() {
				for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
					go func() { _, _ = io.Copy(conn, conn); _ = conn.Close() }()
				}
			})
			return forceReceiveBuffer(conn, oracleBuffer)
		}); err != nil {
			stop()
			return nil, fmt.Errorf("serve at %s: %w", at, err)
		}
	}
	return stop, nil
}

func forceReceiveBuffer(conn *net.UDPConn, size int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size) })
	return errors.Join(err, failed)
}

// receive records datagrams until the socket is closed.
func (tr *oracleTraffic) receive(conn *net.UDPConn) {
	buffer := make([]byte, 2*oracleMessage)
	for {
		n, _, err := conn.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < 16 {
			continue
		}
		tr.mu.Lock()
		f := tr.flows[binary.BigEndian.Uint64(buffer)]
		tr.mu.Unlock()
		if f != nil {
			f.arrived(binary.BigEndian.Uint64(buffer[8:]))
		}
	}
}

// owe waits until flows work. From then on all their datagrams must arrive.
func (tr *oracleTraffic) owe(t *testing.T, flows []*oracleFlow) {
	t.Helper()
	type mark struct {
		next  uint64
		words int
	}
	marks := map[*oracleFlow]mark{}
	for _, f := range flows {
		f.mu.Lock()
		marks[f] = mark{f.next, f.words}
		f.mu.Unlock()
	}
	eventually(t, func() error {
		var errs []error
		for f, m := range marks {
			f.mu.Lock()
			switch {
			case f.last <= m.next:
				errs = append(errs, fmt.Errorf("%s: no datagram arrives", f.name))
			case f.streams && f.words <= m.words:
				errs = append(errs, fmt.Errorf("%s: no message is answered", f.name))
			default:
				f.change(true)
				delete(marks, f)
			}
			f.mu.Unlock()
		}
		return errors.Join(errs...)
	})
}

// awaitEnough waits until enough datagrams of each flow were sent, or for [awaitFor]: few are sent while the sender has no CPU, and a flow may be owed for
// less than a second.
func (tr *oracleTraffic) awaitEnough(flows []*oracleFlow) {
	for deadline := time.Now().Add(awaitFor); time.Now().Before(deadline); time.Sleep(oracleSlots * oracleTick) {
		if !slices.ContainsFunc(flows, func(f *oracleFlow) bool { return f.enough() != nil }) {
			return
		}
	}
}

// release lets flows lose datagrams from now on. All earlier datagrams must have arrived.
func (tr *oracleTraffic) release(flows []*oracleFlow) {
	tr.awaitEnough(flows)
	for _, f := range flows {
		f.mu.Lock()
		if f.owed {
			f.change(false)
		}
		f.mu.Unlock()
	}
	tr.check(flows)
}

// check waits for the datagrams that were sent before the call and had to arrive, and records the missing ones as faults.
func (tr *oracleTraffic) check(flows []*oracleFlow) {
	due := map[*oracleFlow]uint64{}
	for _, f := range flows {
		f.mu.Lock()
		due[f] = f.next
		f.mu.Unlock()
	}
	for deadline := time.Now().Add(answerTimeout); len(due) > 0 && time.Now().Before(deadline); time.Sleep(oracleTick) {
		for f, next := range due {
			if len(f.lost(next)) == 0 {
				delete(due, f)
			}
		}
	}
	for f, next := range due {
		lost := f.lost(next)
		if len(lost) == 0 { // the last datagram arrived at the deadline
			continue
		}
		f.mu.Lock()
		first, last := f.missing[lost[0]], f.missing[lost[len(lost)-1]]
		for _, number := range lost {
			delete(f.missing, number)
		}
		f.mu.Unlock()
		tr.fault("%s: %d datagrams of %d to %d did not arrive, sent at %v to %v", f.name, len(lost), lost[0], lost[len(lost)-1], first, last)
	}
}

// forbid starts attempts to reach denied addresses, which may change, from a place until stop is called.
func (tr *oracleTraffic) forbid(from nodekit.NetNS, addrs func() []netip.Addr) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := from.Do(func() error {
			n := 0
			for tr.await(ctx); ctx.Err() == nil; tr.await(ctx) {
				if all := addrs(); len(all) > 0 {
					kind := []int{unix.SOCK_DGRAM, unix.SOCK_STREAM}[n/len(all)%2]
					if begin(kind, all[n%len(all)]) == nil {
						tr.count(&tr.forbidden)
					}
				}
				n++
				pauseFor(ctx, 2*betweenTries)
			}
			return nil
		}); err != nil {
			tr.fault("try what is denied: %v", err)
		}
	})
	return func() { cancel(); running.Wait() }
}
