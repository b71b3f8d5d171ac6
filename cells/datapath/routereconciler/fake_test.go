package routereconciler

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cilium/hive"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// fakeKernel is a [kernel] with state that observes itself: it writes its devices and routes to the observed tables.
type fakeKernel struct {
	db       *statedb.DB
	links    statedb.RWTable[*devices.Device]
	observed statedb.RWTable[*devices.Route]

	mu     sync.Mutex
	routes map[string]route // by table, destination and metric
	fail   map[string]int   // number of the next calls that fail, by operation
	calls  int
}

func newFakeKernel(db *statedb.DB, links statedb.RWTable[*devices.Device], observed statedb.RWTable[*devices.Route]) *fakeKernel {
	return &fakeKernel{db: db, links: links, observed: observed, routes: map[string]route{}, fail: map[string]int{}}
}

func (k *fakeKernel) id(r route) string { return fmt.Sprintf("%d/%s/%d", r.Table, r.Dst, r.Priority) }

// faulty reports whether this call must fail. The caller must hold the lock.
func (k *fakeKernel) faulty(operation string) error {
	k.calls++
	if k.fail[operation] > 0 {
		k.fail[operation]--
		return errors.New("netlink is tired")
	}
	return nil
}

func (k *fakeKernel) LinkIndex(name string) (int, error) {
	d, _, found := k.links.Get(k.db.ReadTxn(), devices.ByName(name))
	if !found {
		return 0, errNoDevice
	}
	return d.Index, nil
}

func (k *fakeKernel) Create(r route) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.faulty("create"); err != nil {
		return err
	}
	if _, found := k.routes[k.id(r)]; found {
		return errExists
	}
	k.set(r)
	return nil
}

func (k *fakeKernel) Replace(r route) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.set(r)
	return nil
}

func (k *fakeKernel) Delete(r route) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.faulty("delete"); err != nil {
		return err
	}
	if have, found := k.routes[k.id(r)]; found && have.Protocol == r.Protocol {
		k.unset(have)
	}
	return nil
}

func (k *fakeKernel) List() ([]route, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Values(k.routes)), nil
}

func (k *fakeKernel) set(r route) {
	if old, found := k.routes[k.id(r)]; found {
		k.unset(old)
	}
	k.routes[k.id(r)] = r
	txn := k.db.WriteTxn(k.observed)
	_, _, _ = k.observed.Insert(txn, observedAs(r))
	txn.Commit()
}

func (k *fakeKernel) unset(r route) {
	delete(k.routes, k.id(r))
	txn := k.db.WriteTxn(k.observed)
	_, _, _ = k.observed.Delete(txn, observedAs(r))
	txn.Commit()
}

func observedAs(r route) *devices.Route {
	return &devices.Route{Table: r.Table, Dst: r.Dst, Priority: r.Priority, LinkIndex: r.Link, Gw: r.Gw, Src: r.Src,
		Scope: r.Scope, Type: 1, Protocol: uint8(r.Protocol), MTU: r.MTU}
}

// commands returns script commands that contribute routes, change the fake and print it.
func (k *fakeKernel) commands(w desiredroutes.Writer) hive.ScriptCmdsOut {
	return hive.NewScriptCmds(map[string]script.Cmd{
		"want": script.Command(script.CmdUsage{Summary: "replace the routes of an owner", Args: "owner [prefix,device,source[,metric]]..."},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				var routes []desiredroutes.Route
				for _, spec := range args[1:] {
					f := strings.Split(spec, ",")
					r := desiredroutes.Route{Table: 254, Dst: netip.MustParsePrefix(f[0]), Device: f[1], Src: netip.MustParseAddr(f[2])}
					if len(f) > 3 {
						r.Metric, _ = strconv.Atoi(f[3])
					}
					routes = append(routes, r)
				}
				return nil, w.Replace(args[0], routes)
			}),
		"link": script.Command(script.CmdUsage{Summary: "add a device", Args: "index name"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				index, err := strconv.Atoi(args[0])
				txn := k.db.WriteTxn(k.links)
				defer txn.Commit()
				_, _, insert := k.links.Insert(txn, &devices.Device{Index: index, Name: args[1], Up: true})
				return nil, errors.Join(err, insert)
			}),
		"route": script.Command(script.CmdUsage{Summary: "add or delete a route as another program", Args: "add|del prefix protocol"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				protocol, err := strconv.Atoi(args[2])
				r := route{Table: 254, Dst: netip.MustParsePrefix(args[1]), Protocol: protocol, Link: 99}
				k.mu.Lock()
				defer k.mu.Unlock()
				if r.Dst.Addr().Is6() {
					r.Priority = 1024
				}
				if args[0] == "del" {
					k.unset(k.routes[k.id(r)])
				} else {
					k.set(r)
				}
				return nil, err
			}),
		"fail": script.Command(script.CmdUsage{Summary: "make the next calls fail", Args: "operation count"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				n, err := strconv.Atoi(args[1])
				k.mu.Lock()
				defer k.mu.Unlock()
				k.fail[args[0]] = n
				return nil, err
			}),
		"kernel": script.Command(script.CmdUsage{Summary: "print the routes in the fake kernel"},
			func(*script.State, ...string) (script.WaitFunc, error) {
				return func(*script.State) (string, string, error) { return k.print(), "", nil }, nil
			}),
	})
}

func (k *fakeKernel) print() string {
	all, _ := k.List()
	slices.SortFunc(all, func(a, b route) int { return cmp.Compare(k.id(a), k.id(b)) })
	var out strings.Builder
	for _, r := range all {
		fmt.Fprintf(&out, "%s link %d src %s metric %d protocol %d\n", r.Dst, r.Link, r.Src, r.Priority, r.Protocol)
	}
	return out.String()
}
