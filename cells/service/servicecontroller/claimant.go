package servicecontroller

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

// claimant is one of several services that claim an address.
type claimant struct {
	name    string
	kind    frontends.Kind
	created int64
}

// compare orders claimants by precedence: the better kind, then the older object, then the name.
func (a claimant) compare(b claimant) int {
	return cmp.Or(cmp.Compare(order(a.kind), order(b.kind)), cmp.Compare(a.created, b.created), cmp.Compare(a.name, b.name))
}

// arrange sorts claimants by precedence: the first one owns the address. If owner, the previous owner, has a claim of the best kind, the best claimant of its
// namespace is the first one, because an older object of another namespace may have been changed to claim the address, and must not get it.
func arrange(list []claimant, owner string) {
	slices.SortFunc(list, claimant.compare)
	best := list[0].kind
	if !slices.ContainsFunc(list, func(o claimant) bool { return o.name == owner && o.kind == best }) {
		return
	}
	i := slices.IndexFunc(list, func(o claimant) bool { return o.kind == best && namespaceOf(o.name) == namespaceOf(owner) })
	first := list[i]
	copy(list[1:i+1], list[:i])
	list[0] = first
}

func namespaceOf(name string) string {
	namespace, _, _ := strings.Cut(name, "/")
	return namespace
}

// conflicts are the addresses that several services claim.
type conflicts struct {
	claimants map[loadbalancer.Address][]claimant      // all of the address, the owner first
	lost      map[string]map[loadbalancer.Address]bool // by service: claimed addresses that another service owns
}

func newConflicts() conflicts {
	return conflicts{map[loadbalancer.Address][]claimant{}, map[string]map[loadbalancer.Address]bool{}}
}

// replace records the claimants of an address. A single claimant is no conflict.
func (x *conflicts) replace(a loadbalancer.Address, list []claimant) {
	if x.claimants[a] = list; len(list) == 1 {
		delete(x.claimants, a)
	}
	for i, o := range list {
		x.lose(o.name, a, i > 0)
	}
}

// lose records whether another service owns an address that a service claims.
func (x *conflicts) lose(name string, a loadbalancer.Address, lost bool) {
	switch {
	case !lost:
		if delete(x.lost[name], a); len(x.lost[name]) == 0 {
			delete(x.lost, name)
		}
	case x.lost[name] == nil:
		x.lost[name] = map[loadbalancer.Address]bool{a: true}
	default:
		x.lost[name][a] = true
	}
}

// leave returns a copy of a list without a service.
func leave(list []claimant, name string) []claimant {
	return slices.DeleteFunc(slices.Clone(list), func(o claimant) bool { return o.name == name })
}

func namesOf(list []claimant) (names []string) {
	for _, o := range list {
		names = append(names, o.name)
	}
	return names
}

// frontend returns the row of an address, or nil.
func (c *controller) frontend(txn statedb.ReadTxn, a loadbalancer.Address) *frontends.Frontend {
	row, _, _ := c.Frontends.Get(txn, frontends.ByAddress(a))
	return row
}

// held reports whether an address must not get a row yet: the maps have an entry of the previous run, and inputs that are not synced may be older than this
// entry.
func (c *controller) held(a loadbalancer.Address) bool {
	if c.synced {
		return false
	}
	_, restored := c.frontendIDs.restored[a]
	return restored
}

// previousOwner returns the owner of an address before a restart, or else the owner before this pass. It is empty if the address had no owner.
func (p *plan) previousOwner(a loadbalancer.Address) string {
	if name := p.Holders.previous[a]; name != "" {
		return name
	}
	if row := p.frontend(p.txn, a); row != nil {
		return row.Service
	}
	return ""
}

// claim records the claim of a service to an address. It writes the row of the address if the service is the owner.
func (p *plan) claim(name string, m *model, cl *claim) error {
	row, list := p.frontend(p.write, cl.Address), p.conflicts.claimants[cl.Address]
	if list == nil {
		if row == nil || row.Service == name {
			return p.putFrontend(name, m, cl, row, nil)
		}
		list = []claimant{{row.Service, row.Kind, p.age(row.Service)}}
	}
	owner := list[0].name
	list = append(leave(list, name), claimant{name, cl.kind, m.created})
	arrange(list, p.previousOwner(cl.Address))
	p.decide(cl.Address, owner, list, name)
	if list[0].name == name {
		return p.putFrontend(name, m, cl, row, list[1:])
	}
	return p.handOver(row, list)
}

// withdraw removes the claim of a service to an address.
func (p *plan) withdraw(a loadbalancer.Address, name string) error {
	row, list := p.frontend(p.write, a), p.conflicts.claimants[a]
	if list == nil {
		if row == nil || row.Service != name {
			return nil
		}
		p.frontendIDs.free(a, row.ID)
		p.Holders.left(a)
		_, _, err := p.Frontends.Delete(p.write, row)
		return err
	}
	owner := list[0].name
	list = leave(list, name)
	arrange(list, p.previousOwner(a))
	p.conflicts.lose(name, a, false)
	p.decide(a, owner, list, name)
	return p.handOver(row, list)
}

// decide records the claimants of an address. If the owner changes, it queues all claimants except atHand, the service that is being computed.
func (p *plan) decide(a loadbalancer.Address, before string, list []claimant, atHand string) {
	p.Holders.dirty[a] = true
	p.conflicts.replace(a, list)
	for _, o := range list {
		if list[0].name != before && o.name != atHand {
			p.queue.claim(o.name)
		}
	}
}

// handOver makes the first claimant the owner of a row. The other fields of the row are written when this claimant is computed.
func (p *plan) handOver(row *frontends.Frontend, list []claimant) error {
	next := row.Clone()
	next.Service, next.Refused = list[0].name, namesOf(list[1:])
	if next.Equal(row) {
		return nil
	}
	_, _, err := p.Frontends.Insert(p.write, next)
	return err
}

// age returns the creation time of the object of a service, in Unix seconds; 0 if the time or the object is unknown.
func (p *plan) age(name string) int64 {
	if pod, host := hostPortPod(name); host {
		if o, _, found := p.Pods.Get(p.txn, k8s.PodByName(pod)); found {
			return o.Created
		}
		return 0 // the pod is deleted, so the claim is withdrawn in this pass
	}
	if s, _, found := p.KubernetesServices.Get(p.txn, k8s.ServiceByName(name)); found {
		return s.Created
	}
	return 0
}

// putFrontend writes the row of an address for its owner.
func (p *plan) putFrontend(name string, m *model, cl *claim, old *frontends.Frontend, rejected []claimant) error {
	outer, inner := cl.pools()
	row := frontends.Frontend{Address: cl.Address, Kind: cl.kind, Service: name, PortName: cl.port, Backends: outer, Internal: inner,
		TwoScopes: cl.twoScopes, Outside: cl.outside, Affinity: uint32(m.row.Affinity / time.Second), Maglev: cl.outside && m.maglev,
		LocalOnly: cl.localOnly, Loopback: cl.loopback, Refused: namesOf(rejected)}
	row.Drop = (p.Rules.drop || cl.drops()) && (len(outer) == 0 || cl.twoScopes && len(inner) == 0)
	if cl.kind == frontends.LoadBalancer {
		row.Ranges, row.Deny = m.row.SourceRanges, m.deny && m.row.SourceRanges != nil
	}
	if old == nil {
		row.ID = p.frontendIDs.assign(cl.Address)
	} else if row.ID, row.Applied = old.ID, old.Applied; old.Equal(&row) {
		return nil
	}
	row.Status = reconciler.StatusPending()
	_, _, err := p.Frontends.Insert(p.write, &row)
	return err
}
