package services

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// contender is one of several services that claim an address.
type contender struct {
	name    string
	kind    frontends.Kind
	created int64
}

// compare puts who gets the address first: the better kind, then the older object, then the name.
func (a contender) compare(b contender) int {
	return cmp.Or(cmp.Compare(order(a.kind), order(b.kind)), cmp.Compare(a.created, b.created), cmp.Compare(a.name, b.name))
}

// arrange puts who gets the address first, and the others in the order in which they would. Who had it before this pass keeps it against claims of the
// same kind of other namespaces: an object may be older than the claim that it makes.
func arrange(list []contender, holder string) {
	slices.SortFunc(list, contender.compare)
	best := list[0].kind
	if !slices.ContainsFunc(list, func(o contender) bool { return o.name == holder && o.kind == best }) {
		return
	}
	i := slices.IndexFunc(list, func(o contender) bool { return o.kind == best && namespaceOf(o.name) == namespaceOf(holder) })
	first := list[i]
	copy(list[1:i+1], list[:i])
	list[0] = first
}

func namespaceOf(name string) string {
	namespace, _, _ := strings.Cut(name, "/")
	return namespace
}

// holder is who had an address before this pass, or before a restart, empty when nobody had.
func (c *controller) holder(txn statedb.ReadTxn, a loadbalancer.Address) string {
	if name := c.Holders.earlier[a]; name != "" {
		return name
	}
	if row := c.frontend(txn, a); row != nil {
		return row.Service
	}
	return ""
}

// frontend finds a row, nil when there is none.
func (c *controller) frontend(txn statedb.ReadTxn, a loadbalancer.Address) *frontends.Frontend {
	row, _, _ := c.Frontends.Get(txn, frontends.ByAddress(a))
	return row
}

// held tells whether an address must not get a row yet: the maps have it, and what is known here may be less than what they know.
func (c *controller) held(a loadbalancer.Address) bool {
	if c.synced {
		return false
	}
	_, earlier := c.frontendIDs.restored[a]
	return earlier
}

// updateFrontends gives a service the addresses that it claims, unless others have a better claim, and takes from it what it claims
// no more.
func (c *controller) updateFrontends(txn statedb.ReadTxn, write statedb.WriteTxn, name string, before []loadbalancer.Address, m *model) error {
	for i := range m.claims {
		m.row.Claims = append(m.row.Claims, m.claims[i].Address)
	}
	for _, a := range before {
		if _, still := slices.BinarySearchFunc(m.row.Claims, a, loadbalancer.Address.Compare); !still {
			if err := c.withdraw(txn, write, a, name); err != nil {
				return err
			}
		}
	}
	for i := range m.claims {
		if cl := &m.claims[i]; !c.held(cl.Address) {
			if err := c.claim(txn, write, name, m, cl); err != nil {
				return err
			}
		}
	}
	for a := range c.lost[name] {
		m.problem("%s: belongs to %s", a, c.contests[a][0].name)
	}
	return nil
}

// claim gives an address to a service, or puts it among those who would get it.
func (c *controller) claim(txn statedb.ReadTxn, write statedb.WriteTxn, name string, m *model, cl *claim) error {
	row, list := c.frontend(write, cl.Address), c.contests[cl.Address]
	if list == nil {
		if row == nil || row.Service == name {
			return c.putFrontend(write, name, cl, row, nil)
		}
		list = []contender{{row.Service, row.Kind, c.age(txn, row.Service)}}
	}
	owner := list[0].name
	list = append(leave(list, name), contender{name, cl.kind, m.created})
	arrange(list, c.holder(txn, cl.Address))
	c.decide(cl.Address, owner, list, name)
	if list[0].name == name {
		return c.putFrontend(write, name, cl, row, list[1:])
	}
	return c.handOver(write, row, list)
}

// withdraw takes an address from a service that claims it no more.
func (c *controller) withdraw(txn statedb.ReadTxn, write statedb.WriteTxn, a loadbalancer.Address, name string) error {
	row, list := c.frontend(write, a), c.contests[a]
	if list == nil {
		if row == nil || row.Service != name {
			return nil
		}
		c.frontendIDs.free(a, row.ID)
		c.Holders.left(a)
		_, _, err := c.Frontends.Delete(write, row)
		return err
	}
	owner := list[0].name
	list = leave(list, name)
	arrange(list, c.holder(txn, a))
	c.lose(name, a, false)
	c.decide(a, owner, list, name)
	return c.handOver(write, row, list)
}

// decide notes who contends for an address now. When it has another owner than before, all but the one at hand must be computed
// again.
func (c *controller) decide(a loadbalancer.Address, before string, list []contender, atHand string) {
	c.Holders.dirty[a] = true
	if c.contests[a] = list; len(list) == 1 {
		delete(c.contests, a)
	}
	for i, o := range list {
		if c.lose(o.name, a, i > 0); list[0].name != before && o.name != atHand {
			c.concern(o.name)
		}
	}
}

// lose notes whether a service claims an address in vain.
func (c *controller) lose(name string, a loadbalancer.Address, lost bool) {
	switch {
	case !lost:
		if delete(c.lost[name], a); len(c.lost[name]) == 0 {
			delete(c.lost, name)
		}
	case c.lost[name] == nil:
		c.lost[name] = map[loadbalancer.Address]bool{a: true}
	default:
		c.lost[name][a] = true
	}
}

// leave is a list without a service, as a new one.
func leave(list []contender, name string) []contender {
	return slices.DeleteFunc(slices.Clone(list), func(o contender) bool { return o.name == name })
}

// handOver names the first of those who contend as the owner of a row. What else the row says is written when that one is computed.
func (c *controller) handOver(write statedb.WriteTxn, row *frontends.Frontend, list []contender) error {
	next := row.Clone()
	next.Service, next.Refused = list[0].name, namesOf(list[1:])
	if next.Equal(row) {
		return nil
	}
	_, _, err := c.Frontends.Insert(write, next)
	return err
}

func namesOf(list []contender) (names []string) {
	for _, o := range list {
		names = append(names, o.name)
	}
	return names
}

// age is when the object of a service was made.
func (c *controller) age(txn statedb.ReadTxn, name string) int64 {
	if pod, host := hostPortPod(name); host {
		if p, _, found := c.Pods.Get(txn, k8s.PodByName(pod)); found {
			return p.Created
		}
		return 0 // it is on the list, and leaves
	}
	if s, _, found := c.KubernetesServices.Get(txn, k8s.ServiceByName(name)); found {
		return s.Created
	}
	return 0
}

// putFrontend writes the row of an address for its owner.
func (c *controller) putFrontend(write statedb.WriteTxn, name string, cl *claim, old *frontends.Frontend, refused []contender) error {
	m := c.models[name].row
	row := frontends.Frontend{Address: cl.Address, Kind: cl.kind, Service: name, PortName: cl.port, Backends: c.members(write, cl.outer),
		TwoScopes: cl.inner != nil, Outside: cl.outside, Affinity: uint32(m.Affinity / time.Second), Maglev: cl.outside && c.models[name].maglev,
		LocalOnly: cl.localOnly, Loopback: cl.loopback, Refused: namesOf(refused)}
	row.Drop = cl.drop && (len(row.Backends) == 0)
	if row.TwoScopes {
		row.Internal = c.members(write, cl.inner)
		row.Drop = cl.drop && (len(row.Backends) == 0 || len(row.Internal) == 0)
	}
	if cl.kind == frontends.LoadBalancer {
		row.Ranges, row.Deny = m.SourceRanges, c.models[name].deny && m.SourceRanges != nil
	}
	if old == nil {
		row.ID = c.frontendIDs.of(cl.Address)
	} else if row.ID = old.ID; old.Equal(&row) {
		return nil
	}
	row.Status = reconciler.StatusPending()
	_, _, err := c.Frontends.Insert(write, &row)
	return err
}

// members are the ids of a pool.
func (c *controller) members(txn statedb.ReadTxn, p *pool) []uint32 {
	if p.ids == nil && len(p.members) > 0 {
		for _, a := range p.members {
			p.ids = append(p.ids, c.backend(txn, a).ID)
		}
		slices.Sort(p.ids)
	}
	return p.ids
}
