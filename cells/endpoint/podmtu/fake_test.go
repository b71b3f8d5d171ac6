package podmtu

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/script"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/podns"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// fakePod is a link with its default routes. The kernel changes routes of IPv6 with the MTU of the link.
type fakePod struct {
	host, link int
	routes     map[bool]int // MTU by ipv6
	locked     bool         // MTU lock of the IPv4 route
	failing    string       // "denied", or the failing call: host, link, route
}

// fakeKernel holds pods by the inodes of their namespaces.
type fakeKernel struct {
	mu    sync.Mutex
	pods  map[uint64]*fakePod
	order []string // changed objects
	check func()   // called after each change, with mu
	opens map[uint64]int
}

func newFakeKernel() *fakeKernel {
	return &fakeKernel{pods: map[uint64]*fakePod{}, opens: map[uint64]int{}}
}

func (f *fakeKernel) Open(ep *endpoints.Endpoint) (pod, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opens[ep.NetnsInode]++
	p := f.pods[ep.NetnsInode]
	switch {
	case p == nil:
		return nil, podns.ErrGone
	case p.failing == "denied":
		return nil, fmt.Errorf("enter %s: %w", ep.NetnsPath, unix.EPERM)
	}
	return fakeEnds{f, ep.NetnsInode, p}, nil
}

type fakeEnds struct {
	kernel *fakeKernel
	inode  uint64
	*fakePod
}

func (e fakeEnds) ReadSizes() (s sizes, err error) {
	e.kernel.mu.Lock()
	defer e.kernel.mu.Unlock()
	s.host, s.link = e.host, e.link
	for ipv6, mtu := range e.routes {
		s.routes = append(s.routes, route{ipv6: ipv6, mtu: mtu, locked: e.locked && !ipv6})
	}
	slices.SortFunc(s.routes, func(a, b route) int { return strings.Compare(family(a.ipv6), family(b.ipv6)) })
	return s, nil
}

func (e fakeEnds) SetHost(mtu int) error { return e.change("host", mtu, func() { e.host = mtu }) }

func (e fakeEnds) SetLink(mtu int) error {
	return e.change("link", mtu, func() {
		if now, found := e.routes[true]; found && (now >= mtu || now == e.link) {
			e.routes[true] = mtu
		}
		e.link = mtu
	})
}

func (e fakeEnds) SetRoute(r route, mtu int) error {
	return e.change("route "+family(r.ipv6), mtu, func() { e.routes[r.ipv6] = mtu })
}

func (fakeEnds) Close() {}

func (e fakeEnds) change(what string, mtu int, do func()) error {
	e.kernel.mu.Lock()
	defer e.kernel.mu.Unlock()
	if e.failing != "" && strings.HasPrefix(what, e.failing) {
		return errors.New("set " + what + ": refused by the test")
	}
	do()
	e.kernel.order = append(e.kernel.order, fmt.Sprintf("%d %s %d", e.inode, what, mtu))
	if e.kernel.check != nil {
		e.kernel.check()
	}
	return nil
}

// commands returns the script commands.
func (f *fakeKernel) commands() upstream.ScriptCmdsOut {
	command := func(summary, args string, do func(a []string) string) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary, Args: args}, func(_ *script.State, a ...string) (script.WaitFunc, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			out := do(a)
			return func(*script.State) (string, string, error) { return out, "", nil }, nil
		})
	}
	number := func(text string) int {
		n, err := strconv.Atoi(text)
		if err != nil {
			panic(err)
		}
		return n
	}
	return upstream.NewScriptCmds(map[string]script.Cmd{
		"pod/set": command("Put a pod, with routes of both families unless they are -", "inode host link [route4 route6]", func(a []string) string {
			p := &fakePod{host: number(a[1]), link: number(a[2]), routes: map[bool]int{}}
			for i, text := range a[3:] {
				p.routes[i == 1] = number(text)
			}
			f.pods[uint64(number(a[0]))] = p
			return ""
		}),
		"pod/lock": command("Lock the MTU of the IPv4 route", "inode", func(a []string) string { f.pods[uint64(number(a[0]))].locked = true; return "" }),
		"pod/fail": command("Let a call fail; without a name none", "inode [denied|host|link|route]", func(a []string) string {
			f.pods[uint64(number(a[0]))].failing = strings.Join(a[1:], "")
			return ""
		}),
		"pod/list": command("Show all pods", "", func([]string) string {
			var b strings.Builder
			for _, inode := range slices.Sorted(maps.Keys(f.pods)) {
				p := f.pods[inode]
				fmt.Fprintf(&b, "%d host %d link %d routes %d %d\n", inode, p.host, p.link, p.routes[false], p.routes[true])
			}
			return b.String()
		}),
		"pod/order":  command("Show what was changed, in order", "", func([]string) string { return strings.Join(append(f.order, ""), "\n") }),
		"pod/forget": command("Forget the order", "", func([]string) string { f.order = nil; return "" }),
		"pod/opens":  command("Show how often the pods 11 to 13 were opened", "", func([]string) string { return fmt.Sprintln(f.opens[11], f.opens[12], f.opens[13]) }),
	})
}
