// Package load generates traffic between places of a node and reports its results: long TCP connections with checked byte streams, numbered datagrams, short
// connections, and forbidden frames that must never arrive.
//
// The report distinguishes effects of the generator from effects of the network. A socket counts the datagrams that exceed its full receive buffer
// (SO_RXQ_OVFL). Pauses of the sender do not count, because the sender skips missed slots; pauses of the receiver do not count, because the kernel records
// the arrival time of a datagram (SO_TIMESTAMPNS). TCP retransmits lost segments, so the report compares the kernel's segment counters at both ends of a
// connection (TCP_INFO).
package load

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/test/nodekit"
)

// Path is a client and a server of traffic.
type Path struct {
	Name     string
	From, To nodekit.NetNS
	Addr     netip.Addr // of To
	Port     uint16     // of To, for connections and for datagrams; 0 means any free port
	// Service is the destination of From if it is not To itself.
	Service netip.AddrPort
}

// target returns the destination of From if To listens at an address.
func (p Path) target(at net.Addr) string {
	if p.Service.IsValid() {
		return p.Service.String()
	}
	return at.String()
}

// Rates configures the amount of traffic, in total over all paths.
type Rates struct {
	Connections int // long connections
	Messages    int // per second, over the long connections; each is echoed
	Datagrams   int // per second
	Connects    int // per second: connect, exchange one message, close
	Lies        int // per second, over all probes
}

// Full returns the rates that a machine with two CPUs can sustain beside the node itself.
func Full() Rates {
	return Rates{Connections: 200, Messages: 1000, Datagrams: 5000, Connects: 200, Lies: 100}
}

// emulatedShare is the divisor of the rates on an emulated CPU: starting agents use most of its time.
const emulatedShare = 20

// emulated returns the rates for an emulated CPU, with at least one connection per path and one datagram per tick.
func (r Rates) emulated(paths int) Rates {
	scale := func(n, least int) int {
		if n == 0 {
			return 0
		}
		return max(n/emulatedShare, least)
	}
	return Rates{Connections: scale(r.Connections, paths), Messages: scale(r.Messages, paths), Datagrams: scale(r.Datagrams, int(time.Second/tick)),
		Connects: scale(r.Connects, 1), Lies: scale(r.Lies, 1)}
}

// Load is traffic that runs until [Load.Stop].
type Load struct {
	rates   Rates
	begin   time.Time
	stop    chan struct{} // closed when no new traffic may be sent
	senders sync.WaitGroup
	servers []*server
	streams []*stream
	probes  []*probe
	faults  faults
	tcp     TCP
	// handshake is the value of [connection.underway] for an idle connection.
	handshake int
	short     Connects
	sent      amounts
	// Missed slots, see [Load.every].
	missedDatagrams, missedLies int
	backlog                     uint64 // packets that the machine dropped before the start
	turn                        *Turn
}

// amounts counts the traffic that a load has sent so far.
type amounts struct{ messages, datagrams, connects, lies atomic.Int64 }

// soFar returns a report with the amounts of traffic only.
func (l *Load) soFar() Report {
	r := Report{Rates: l.rates, TCP: TCP{Messages: int(l.sent.messages.Load())}, UDP: UDP{Sent: int(l.sent.datagrams.Load())},
		Connects: Connects{Done: int(l.sent.connects.Load())}, Denied: Denied{Sent: int(l.sent.lies.Load())}}
	r.Duration = l.At() // last, so that the traffic of this duration is not less
	return r
}

// processors is the minimum of the runtime's GOMAXPROCS. A waking sender needs a processor, and on a machine with two CPUs all processors may be held by
// threads that the kernel does not run.
const processors = 16

// StartFor is [Start] for a test. It fails the test on an error. The load ends with the test at the latest.
func StartFor(t testing.TB, rates Rates, paths []Path, probes []Probe) *Load {
	t.Helper()
	began := time.Now()
	l, err := Start(rates, paths, probes)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the load began after %v, other loads included", time.Since(began).Round(time.Millisecond))
	t.Cleanup(func() {
		select {
		case <-l.stop:
		default:
			_, _ = l.Stop() // the test has already failed
		}
	})
	return l
}

// Start waits until no other load runs on this machine, opens all sockets, checks each path once, and starts the traffic. The next load waits for
// [Load.Stop]. On an emulated CPU the rates are divided by twenty.
func Start(rates Rates, paths []Path, probes []Probe) (_ *Load, err error) {
	if runtime.GOMAXPROCS(0) < processors {
		runtime.GOMAXPROCS(processors)
	}
	if testnet.Emulated() {
		rates = rates.emulated(len(paths))
	}
	l := &Load{rates: rates, stop: make(chan struct{})}
	if len(probes) == 0 {
		l.rates.Lies = 0
	}
	l.faults.load = l
	if l.turn, err = takeTurn(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close(), l.turn.Release())
		}
	}()
	if l.backlog, err = backlogDrops(); err != nil {
		return nil, err
	}
	for i, path := range paths {
		s, err := newServer(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path.Name, err)
		}
		l.servers = append(l.servers, s)
		u, err := newStream(path, i, &l.faults)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path.Name, err)
		}
		l.streams = append(l.streams, u)
	}
	for _, p := range probes {
		opened, err := newProbe(p)
		if err != nil {
			return nil, fmt.Errorf("probe %s: %w", p.Name, err)
		}
		l.probes = append(l.probes, opened)
	}
	connections, err := l.connect(rates.Connections)
	if err != nil {
		return nil, err
	}
	l.begin = time.Now()
	for i, c := range connections {
		period := time.Second * time.Duration(rates.Connections) / time.Duration(rates.Messages)
		l.run(func() { l.converse(c, period, period*time.Duration(i)/time.Duration(rates.Connections)) })
	}
	l.run(func() { l.sendDatagrams(rates.Datagrams) })
	l.run(func() { l.lie(rates.Lies) })
	for i, s := range l.servers {
		period := time.Second * time.Duration(len(paths)) / time.Duration(rates.Connects)
		l.run(func() { l.connectOften(s, period, period*time.Duration(i)/time.Duration(len(paths))) })
	}
	return l, nil
}

// run starts a sender.
func (l *Load) run(f func()) { l.senders.Go(f) }

// At returns the time since the start, which reports use for events.
func (l *Load) At() time.Duration { return time.Since(l.begin).Round(time.Millisecond) }

// Turn returns the turn that the load holds until [Load.Stop]: for other generators beside the load.
func (l *Load) Turn() *Turn { return l.turn }

// LastAtLeast waits until the load has run for the duration d.
func (l *Load) LastAtLeast(d time.Duration) { l.sleep(d - l.At()) }

// catchUp limits the time that a load continues after [Load.Stop], because its senders had no CPU before.
const catchUp = 15 * time.Second

// Stop ends the traffic, waits for packets in flight, and reports. Too little traffic proves nothing, see [Report.inconclusive], so it first continues for up to
// catchUp.
func (l *Load) Stop() (_ Report, err error) {
	defer func() { err = errors.Join(err, l.turn.Release()) }()
	sent := l.soFar()
	for deadline := time.Now().Add(catchUp); len(sent.inconclusive()) > 0 && time.Now().Before(deadline); sent = l.soFar() {
		time.Sleep(tick)
	}
	close(l.stop)
	l.senders.Wait()
	r := Report{Rates: l.rates, Duration: sent.Duration, TCP: l.tcp, Connects: l.short}
	r.UDP.Overslept, r.Denied.Overslept = l.missedDatagrams, l.missedLies
	for _, s := range l.streams {
		s.finish(&r.UDP)
	}
	for _, p := range l.probes {
		if err := p.finish(&r.Denied); err != nil {
			return r, errors.Join(fmt.Errorf("probe %s: %w", p.Name, err), l.close())
		}
	}
	if err := l.close(); err != nil { // includes the servers' ends, whose counters are needed
		return r, err
	}
	for _, s := range l.servers {
		r.TCP.Retransmitted += s.retransmitted
	}
	drops, err := backlogDrops()
	r.Backlog, r.Faults = drops-l.backlog, l.faults.list
	return r, err
}

func (l *Load) close() error {
	var errs []error
	for _, s := range l.servers {
		errs = append(errs, s.close())
	}
	for _, s := range l.streams {
		errs = append(errs, s.close())
	}
	for _, p := range l.probes {
		errs = append(errs, p.close())
	}
	return errors.Join(errs...)
}

// every calls f in each period, from offset on, until the load stops or f returns that it is done. It skips missed slots and counts the slots that it missed
// because the goroutine woke too late. Slots during a call of f are not counted, since the delay is caused by the network.
func (l *Load) every(period, offset time.Duration, f func() bool) (overslept int) {
	return l.everyBy(l.sleep, period, offset, f)
}

// sleep waits for a duration and reports whether the load stops.
func (l *Load) sleep(d time.Duration) (stops bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-l.stop:
		return true
	case <-timer.C:
		return false
	}
}

// sleepThread is [Load.sleep] for a goroutine that is locked to a high-priority thread: the kernel wakes this thread directly, whereas a runtime timer
// depends on threads of normal priority.
func (l *Load) sleepThread(d time.Duration) (stops bool) {
	if d > 0 {
		pause := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&pause, nil) // a signal may end the sleep early, which [Load.everyBy] compensates
	}
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// everyBy is [Load.every] with a sleep function.
func (l *Load) everyBy(sleep func(time.Duration) (stops bool), period, offset time.Duration, f func() bool) (overslept int) {
	next := l.begin.Add(offset)
	for {
		for time.Until(next) > 0 {
			if sleep(time.Until(next)) {
				return overslept
			}
		}
		if sleep(0) {
			return overslept + max(0, int(time.Since(next)/period))
		}
		if missed := max(0, time.Since(next).Truncate(period)); missed > 0 {
			overslept += int(missed / period)
			next = next.Add(missed)
		}
		if !f() {
			return overslept
		}
		next = next.Add(period)
		if late := time.Since(next); late > 0 {
			next = next.Add(late.Truncate(period))
		}
	}
}

// faults collects failures with their times.
type faults struct {
	load *Load
	mu   sync.Mutex
	list []string
}

// maxFaults limits the reported faults; counters contain the total.
const maxFaults = 100

func (f *faults) add(path, format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.list) < maxFaults {
		f.list = append(f.list, fmt.Sprintf("%v %s: %s", f.load.At(), path, fmt.Sprintf(format, args...)))
	}
}
