// Package load keeps traffic going between places of a node and says afterwards what became of it: long TCP connections
// with checked byte streams, numbered datagrams, short connections, and forbidden frames that must never arrive.
//
// What the generator itself causes is told apart from what the network does. Datagrams that a full receive buffer refused
// are counted by their socket (SO_RXQ_OVFL). Pauses of the sender do not count, because a slot that was missed is not
// made up for; pauses of the receiver do not, because the kernel notes when a datagram arrived (SO_TIMESTAMPNS). TCP makes up
// for what is lost, so the kernel's counters of segments at both ends of a connection are compared (TCP_INFO).
package load

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testnet"
	"github.com/waggle-net/waggle/test/nodekit"
)

// Path is one way that traffic takes.
type Path struct {
	Name     string
	From, To nodekit.Place
	Addr     netip.Addr // of To
	Port     uint16     // of To, for connections and for datagrams; 0 is any that is free
	// Service is where From sends to when that is not To itself.
	Service netip.AddrPort
}

// target is where From sends to when To listens at an address.
func (p Path) target(at net.Addr) string {
	if p.Service.IsValid() {
		return p.Service.String()
	}
	return at.String()
}

// Rates say how much there is, in total over all paths.
type Rates struct {
	Connections int // long ones
	Messages    int // a second, over the long connections; each is echoed
	Datagrams   int // a second
	Connects    int // a second: connect, exchange one message, close
	Lies        int // a second, over all probes
}

// Full is what a machine of two cores carries beside the node itself.
func Full() Rates {
	return Rates{Connections: 200, Messages: 1000, Datagrams: 5000, Connects: 200, Lies: 100}
}

// emulatedShare is the part of the rates that an emulated CPU carries beside the nodes: agents that start take most of it.
const emulatedShare = 20

// emulated returns the rates for an emulated CPU. Each path keeps a connection, and each tick a datagram.
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
	stop    chan struct{} // closed when nothing new may be sent
	senders sync.WaitGroup
	servers []*server
	streams []*stream
	probes  []*probe
	faults  faults
	tcp     TCP
	// handshake is what [connection.underway] says of a connection at rest.
	handshake int
	short     Connects
	// Slots that were overslept, see [Load.every].
	missedDatagrams, missedLies int
	backlog                     uint64 // drops of the machine before the start
	turn                        *Turn
}

// processors is how many of its processors the runtime has at least. A sender that wakes needs one, and those of a machine of two CPUs may
// all be with threads that the kernel keeps waiting.
const processors = 16

// StartFor is [Start] for a test, which it fails on an error. The load ends with the test at the latest.
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
			_, _ = l.Stop() // the test has failed before
		}
	})
	return l
}

// Start waits until no other load runs on this machine, opens all sockets, sees each path work once, and begins. The next load
// waits for [Load.Stop]. Rates are a twentieth where the CPU is emulated.
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

// At is how long the load has been running: reports say moments so.
func (l *Load) At() time.Duration { return time.Since(l.begin).Round(time.Millisecond) }

// Turn is the permission that the load has until [Load.Stop]: for generators beside it.
func (l *Load) Turn() *Turn { return l.turn }

// LastAtLeast returns when the load has run for some time, at once when it has.
func (l *Load) LastAtLeast(d time.Duration) { l.sleep(d - l.At()) }

// Stop ends the traffic, waits for what is still on its way, and reports.
func (l *Load) Stop() (_ Report, err error) {
	defer func() { err = errors.Join(err, l.turn.Release()) }()
	close(l.stop)
	l.senders.Wait()
	r := Report{Rates: l.rates, Duration: l.At(), TCP: l.tcp, Connects: l.short}
	r.UDP.Overslept, r.Denied.Overslept = l.missedDatagrams, l.missedLies
	for _, s := range l.streams {
		s.finish(&r.UDP)
	}
	for _, p := range l.probes {
		if err := p.finish(&r.Denied); err != nil {
			return r, errors.Join(fmt.Errorf("probe %s: %w", p.Name, err), l.close())
		}
	}
	if err := l.close(); err != nil { // and with it the servers' ends, whose counters are needed
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

// every calls f in each period, from offset on, until the load stops or f says that it is over. Slots that were missed
// are left out. It counts those that were missed because nobody woke in time; while f runs, it is the network that takes its time.
func (l *Load) every(period, offset time.Duration, f func() bool) (overslept int) {
	return l.everyBy(l.sleep, period, offset, f)
}

// sleep waits, and reports whether the load stops.
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

// sleepThread is [Load.sleep] for a goroutine that is locked to a thread of high priority: the kernel wakes that thread itself, where a
// timer of the runtime waits for threads of another priority.
func (l *Load) sleepThread(d time.Duration) (stops bool) {
	if d > 0 {
		pause := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&pause, nil) // a signal may end it early, which [Load.everyBy] makes up for
	}
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// everyBy is [Load.every] with a way to wait.
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

// faults is what went wrong, and when.
type faults struct {
	load *Load
	mu   sync.Mutex
	list []string
}

// maxFaults is what one can read; counters hold the rest.
const maxFaults = 100

func (f *faults) add(path, format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.list) < maxFaults {
		f.list = append(f.list, fmt.Sprintf("%v %s: %s", f.load.At(), path, fmt.Sprintf(format, args...)))
	}
}
