package pathtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/pkg/icmpecho"
)

// segment is the size of a TCP segment of the fake network, in bytes.
const segment = 1400

// fake is a network of hosts that reply unless a fault is set for their address.
type fake struct {
	mu     sync.Mutex // guards the fields below
	wrong  map[netip.Addr]wrong
	heard  map[netip.Addr]time.Time
	echoes int
	began  map[netip.Addr][]time.Time // start of each small echo request, by address
}

// wrong is the set of faults of an address. The zero value is none.
type wrong struct {
	silent     bool // no reply
	mtu        int  // larger packets are lost; 0 for no limit
	tcp        bool // TCP is lost
	spoils     bool // TCP is lost, unless the kernel completes its checksums
	aggregates bool // a reply of more than one segment is retransmitted in parts
	slow       bool // TCP is slow
	closed     bool // the port is closed
	old        bool // a server that sends no body
	impeded    bool // this node cannot send
	past       bool // packets on the direct path are lost
	through    bool // packets through the tunnel are lost
}

func newFake() *fake {
	return &fake{wrong: map[netip.Addr]wrong{}, heard: map[netip.Addr]time.Time{}, began: map[netip.Addr][]time.Time{}}
}

func (f *fake) set(to netip.Addr, w wrong) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrong[to] = w
}

// hear lets this node receive an echo request from an address.
func (f *fake) hear(from netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard[from] = time.Now()
}

func (f *fake) at(to netip.Addr) wrong {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wrong[to]
}

func (f *fake) Echo(ctx context.Context, r icmpecho.Request) (time.Duration, error) {
	f.mu.Lock()
	f.echoes++
	if r.Size == 0 && r.Hop == nil {
		f.began[r.To] = append(f.began[r.To], time.Now())
	}
	w := f.wrong[r.To]
	f.mu.Unlock()
	switch {
	case w.impeded:
		return 0, icmpecho.CannotOpen(syscall.EPERM)
	case w.silent || w.mtu > 0 && r.Size > w.mtu || w.past && r.Hop != nil || w.through && r.Hop == nil && r.Device != 0:
		<-ctx.Done()
		return 0, ctx.Err()
	}
	time.Sleep(time.Millisecond)
	return time.Millisecond, nil
}

func (f *fake) Fetch(ctx context.Context, to netip.AddrPort, bytes int, by checksums) (int, error) {
	w := f.at(to.Addr())
	switch {
	case w.silent || w.tcp || w.spoils && by == byUnderlay:
		<-ctx.Done()
		return 0, ctx.Err()
	case w.closed:
		return 0, syscall.ECONNREFUSED
	case w.old:
		return 0, nil
	case w.aggregates && bytes > segment:
		time.Sleep(time.Second) // the time that TCP needs to send segment by segment
		return bytes, nil
	case w.slow:
		time.Sleep(time.Second)
		return bytes, nil
	}
	time.Sleep(time.Millisecond)
	return bytes, nil
}

func (f *fake) Heard(from netip.Addr) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.heard[from]
}

func (*fake) Open()  {}
func (*fake) Close() {}

// tests returns the times at which an address was tested.
func (f *fake) tests(to netip.Addr) []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Time(nil), f.began[to]...)
}

// commands change the network:
//
//	net/set ADDR FAULT...   set the faults of an address, none to clear them: silent, mtu=N, tcp, spoils, aggregates, slow, closed, old, impeded, past, through
//	net/hear ADDR           an address sends this node an echo request
func (f *fake) commands() upstream.ScriptCmdsOut {
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"net/set": script.Command(script.CmdUsage{Summary: "Break an address", Args: "addr fault..."},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				addr, err := netip.ParseAddr(args[0])
				var w wrong
				for _, fault := range args[1:] {
					name, value, _ := strings.Cut(fault, "=")
					flag := map[string]*bool{"silent": &w.silent, "tcp": &w.tcp, "spoils": &w.spoils, "aggregates": &w.aggregates, "closed": &w.closed, "slow": &w.slow, "old": &w.old, "impeded": &w.impeded,
						"past": &w.past, "through": &w.through}[name]
					switch {
					case flag != nil:
						*flag = true
					case name == "mtu":
						n, failed := strconv.Atoi(value)
						w.mtu, err = n, errors.Join(err, failed)
					default:
						err = errors.Join(err, fmt.Errorf("fault %q is unknown", fault))
					}
				}
				f.set(addr, w)
				return nil, err
			}),
		"net/hear": script.Command(script.CmdUsage{Summary: "Receive an echo request", Args: "addr"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				addr, err := netip.ParseAddr(args[0])
				f.hear(addr)
				return nil, err
			}),
	})
}
