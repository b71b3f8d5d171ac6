package ctgc

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell { return cells(newFake()) })
}

// cells are the module under test and the tables that it reads.
func cells(fake *fakeKernel) []cell.Cell {
	return []cell.Cell{
		cell.Provide(
			endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable,
			ipamaddresses.NewTable, statedb.RWTable[ipamaddresses.Address].ToTable,
			frontends.NewTable, statedb.RWTable[*frontends.Frontend].ToTable,
			backends.NewTable, statedb.RWTable[*backends.Backend].ToTable,
			ipcache.NewTable, statedb.RWTable[*ipcache.Entry].ToTable,
			services.NewTable, statedb.RWTable[*services.Service].ToTable,
			nodeaddresses.NewTable, statedb.RWTable[nodeaddresses.Address].ToTable,
			nodes.NewTable, statedb.RWTable[*nodes.Node].ToTable,
			masquerade.NewExclusionTable, statedb.RWTable[*masquerade.Exclusion].ToTable,
			devices.NewAddressTable, statedb.RWTable[devices.Address].ToTable,
			fake.commands,
			func() agentconfig.Agent {
				return agentconfig.Agent{NodeName: "one", EndpointShare: 50, HealthChecking: true}
			},
		),
		cell.Module("ct-gc", "Under test",
			cell.ProvidePrivate(func() kernel { return fake }, func() natKernel { return fakeNat{fake} },
				func() grace { return addressGrace }), implementation),
	}
}

// fakeKernel holds flows, counts and a clock that only tests advance.
type fakeKernel struct {
	mu        sync.Mutex
	flows     map[string]map[ctmap.Key]bpf.CtEntry
	nat       map[natmap.Key]natmap.Flow
	kept      map[bpf.AffinityKey]bpf.AffinityEntry
	counts    []uint32
	capacity  uint32 // of each map
	natCounts []bpf.NatCount
	natTotals [2]bpf.NatCount
	// natCapacity is the capacity of each map of translated flows.
	natCapacity uint32
	now         uint32
	failing     map[string]bool // by call
	signals     chan bpf.CtSignal
	closed      chan struct{}
	once        sync.Once
	// If prolong is set, an entry is renewed between its look-up and its deletion.
	prolong bool
	reading func()          // called when translated flows are read; nil for none
	began   func(of string) // called when a map of flows is started and all previous ones have been read; nil for none
}

func newFake() *fakeKernel {
	f := &fakeKernel{flows: map[string]map[ctmap.Key]bpf.CtEntry{}, nat: map[natmap.Key]natmap.Flow{}, kept: map[bpf.AffinityKey]bpf.AffinityEntry{},
		counts: make([]uint32, 16), capacity: 10, natCounts: make([]bpf.NatCount, 16), natCapacity: 10, now: 1000, failing: map[string]bool{},
		signals: make(chan bpf.CtSignal, 1024), closed: make(chan struct{})}
	for _, m := range ctmap.Maps() {
		f.flows[m.Name] = map[ctmap.Key]bpf.CtEntry{}
	}
	return f
}

func (f *fakeKernel) fails(call string) error {
	if f.failing[call] {
		return fmt.Errorf("%s: refused by the test", call)
	}
	return nil
}

func (f *fakeKernel) Now() (uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now, f.fails("now")
}

// fakeSlice is the number of flows in one slice, so small that scripts use several slices.
const fakeSlice = 2

type fakeReader struct{ flows []ctmap.Flow }

func (r *fakeReader) Next() ([]ctmap.Flow, bool, error) {
	n := min(fakeSlice, len(r.flows))
	out := r.flows[:n]
	r.flows = r.flows[n:]
	return out, len(r.flows) == 0, nil
}

func (f *fakeKernel) Read(m ctmap.Map) (reader, uint32, error) {
	if f.began != nil {
		f.began(m.Name)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &fakeReader{}
	for key, entry := range f.flows[m.Name] {
		r.flows = append(r.flows, ctmap.Flow{Key: key, Entry: entry, Established: m.Established})
	}
	return r, f.capacity, f.fails("read")
}

func (f *fakeKernel) Delete(m ctmap.Map, key *ctmap.Key, dead func(*bpf.CtEntry) bool) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fails("delete"); err != nil {
		return false, err
	}
	entry, found := f.flows[m.Name][*key]
	if f.prolong {
		entry.Expires = f.now + 100
		f.flows[m.Name][*key] = entry
	}
	if !found || !dead(&entry) {
		return false, nil
	}
	delete(f.flows[m.Name], *key)
	return true, nil
}

func (f *fakeKernel) Counts() ([]uint32, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.counts), f.fails("counts")
}

func (f *fakeKernel) SetCount(id uint16, n uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[id] = n
	return f.fails("set-count")
}

func (f *fakeKernel) Signals() (signals, error) { return fakeSignals{f}, nil }

// commands are script commands that store flows and list the remaining ones.
func (f *fakeKernel) commands() upstream.ScriptCmdsOut {
	simple := func(summary string, run func(args []string) (string, error)) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary, Args: "..."}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			out, err := run(args)
			return func(*script.State) (string, string, error) { return out, "", err }, nil
		})
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"kernel/flow":  simple("Put a flow: map protocol from to, then name=value for fields", f.put),
		"kernel/flows": simple("List the flows of all maps", func([]string) (string, error) { return f.list(), nil }),
		"kernel/clock": simple("Let so many ticks pass", func(args []string) (string, error) {
			n, err := strconv.ParseUint(args[0], 10, 32)
			f.now += uint32(n)
			return "", err
		}),
		"kernel/fail": simple("Let calls fail, and no others", func(args []string) (string, error) {
			clear(f.failing)
			for _, call := range args {
				f.failing[call] = true
			}
			return "", nil
		}),
		"kernel/prolong": simple("Let a packet come for each flow right before it is deleted", func([]string) (string, error) {
			f.prolong = true
			return "", nil
		}),
		"kernel/pair":     simple("Put a translated flow: protocol place from to new-from new-to reverse-place, then name=value for fields", f.putPair),
		"kernel/pairs":    simple("List the entries of translated flows", func([]string) (string, error) { return f.listPairs(), nil }),
		"kernel/keep":     simple("Let a client keep a backend: address service backend ticks-ago", f.keep),
		"kernel/affinity": simple("List the clients that keep a backend", func([]string) (string, error) { return f.listAffinity(), nil }),
		"kernel/count": simple("Set what programs count for an endpoint", func(args []string) (string, error) {
			id, err1 := strconv.Atoi(args[0])
			n, err2 := strconv.ParseUint(args[1], 10, 32)
			f.counts[id] = uint32(n)
			return "", errors.Join(err1, err2)
		}),
		"kernel/counts": simple("List what is counted", func([]string) (string, error) {
			var out strings.Builder
			for id, n := range f.counts {
				if n != 0 {
					fmt.Fprintf(&out, "%d %d\n", id, int32(n))
				}
			}
			return out.String(), nil
		}),
		"kernel/nat-count": simple("Set what programs count of translated flows for an endpoint: id IPv4 IPv6", f.setNatCount),
		"kernel/nat-counts": simple("List what is counted of translated flows", func([]string) (string, error) {
			return listNatCounts(f.natCounts), nil
		}),
		"kernel/nat-total": simple("Set what programs count of translated flows of no one endpoint: slot IPv4 IPv6", f.setNatTotal),
		"kernel/nat-totals": simple("List what is counted of translated flows of no one endpoint", func([]string) (string, error) {
			return listNatCounts(f.natTotals[:]), nil
		}),
		"kernel/signal": simple("Send signals: family endpoint number", func(args []string) (string, error) {
			var n [3]uint64
			for i := range n {
				var err error
				if n[i], err = strconv.ParseUint(args[i], 10, 32); err != nil {
					return "", err
				}
			}
			for range n[2] {
				f.signals <- bpf.CtSignal{Family: uint32(n[0]), Endpoint: uint32(n[1])}
			}
			return "", nil
		}),
	})
}

func (f *fakeKernel) put(args []string) (string, error) {
	protocol, found := map[string]uint8{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP, "ICMP": unix.IPPROTO_ICMP}[args[1]]
	from, err1 := netip.ParseAddrPort(args[2])
	to, err2 := netip.ParseAddrPort(args[3])
	if err := errors.Join(err1, err2); err != nil || !found || f.flows[args[0]] == nil {
		return "", fmt.Errorf("%q: %w", args, errors.Join(err, errors.New("is no flow")))
	}
	entry := bpf.CtEntry{Check: 1, Created: f.now, Expires: f.now + 100}
	flow := bpf.CtFlow{Initiator: from, Responder: to, Protocol: protocol}
	for _, field := range args[4:] {
		name, text, _ := strings.Cut(field, "=")
		v, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return "", err
		}
		switch name {
		case "initiator":
			entry.Initiator, entry.InitiatorRevision = uint16(v), 70
		case "target":
			entry.Responder, entry.ResponderRevision = uint16(v), 80
		case "left":
			entry.Expires = f.now + uint32(v)
		case "identities":
			entry.InitiatorIdentity, entry.ResponderIdentity = uint32(v), uint32(v)+1
		case "age":
			entry.Created -= uint32(v)
		case "replied":
			entry.Flags |= bpf.CtReplied
		case "reset":
			entry.Flags |= bpf.CtResponderReset
		case "packets":
			entry.Packets, entry.Bytes = v, v*100
		case "type":
			flow.ICMPType = uint8(v)
		default:
			return "", fmt.Errorf("%s: no such field", name)
		}
	}
	key, second := ctmap.KeyOf(flow)
	if second {
		entry.Flags |= bpf.CtInitiatorSecond
	}
	if strings.Contains(args[0], "est") {
		entry.Flags |= bpf.CtEstablished
	}
	f.flows[args[0]][key] = entry
	return "", nil
}

func (f *fakeKernel) setNatCount(args []string) (string, error) {
	return "", setNatCount(f.natCounts, args)
}

func (f *fakeKernel) setNatTotal(args []string) (string, error) {
	return "", setNatCount(f.natTotals[:], args)
}

func setNatCount(counts []bpf.NatCount, args []string) error {
	var n [3]int
	for i := range n {
		var err error
		if n[i], err = strconv.Atoi(args[i]); err != nil {
			return err
		}
	}
	counts[n[0]] = bpf.NatCount{Ipv4: int32(n[1]), Ipv6: int32(n[2])}
	return nil
}

func listNatCounts(counts []bpf.NatCount) string {
	var out strings.Builder
	for id, n := range counts {
		if n != (bpf.NatCount{}) {
			fmt.Fprintf(&out, "%d %d %d\n", id, n.Ipv4, n.Ipv6)
		}
	}
	return out.String()
}

func (f *fakeKernel) list() string {
	var lines []string
	for name, flows := range f.flows {
		for key, entry := range flows {
			t := (&ctmap.Flow{Key: key, Entry: entry}).Tuple()
			lines = append(lines, fmt.Sprintf("%s %s %s\n", name, t.Initiator, t.Responder))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// fakeSignals implements signals.
type fakeSignals struct{ *fakeKernel }

func (f fakeSignals) Close() error { f.once.Do(func() { close(f.closed) }); return nil }

func (f fakeSignals) Read(deadline time.Time) (bpf.CtSignal, error) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case s := <-f.signals:
		return s, nil
	default:
	}
	select {
	case s := <-f.signals:
		return s, nil
	case <-timer.C:
		return bpf.CtSignal{}, os.ErrDeadlineExceeded
	case <-f.closed:
		return bpf.CtSignal{}, os.ErrClosed
	}
}
