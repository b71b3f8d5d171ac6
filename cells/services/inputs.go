package services

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changes"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/serviceannotations"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// inputs say which services a change concerns. They are for one goroutine.
type inputs struct {
	params
	services *changes.Feed[*k8s.Service]
	slices   *changes.Feed[*k8s.EndpointSlice]
	pods     *changes.Feed[*k8s.Pod]
	// strays are the services of slices whose names do not begin with that of their service.
	strays map[string]string
	// wanted is what Services want by annotations, by name; those without any are left out. It changes between two passes only.
	wanted    map[string]*serviceannotations.Wanted
	nodes     *clusternodes.Follower
	resolved  bool // each node that was known at the start has its addresses and ranges
	seen      seen
	endpoints *changes.Feed[*endpoints.Endpoint]
	residents residents
}

// seen is what the world was made from.
type seen struct {
	self       *k8s.Node // nil without one
	addresses  statedb.Revision
	apiServers [3]statedb.Revision
}

// newInputs subscribes. The first [inputs.read] names all that there are.
func newInputs(p params) (in *inputs, err error) {
	in = &inputs{params: p, strays: map[string]string{}, wanted: map[string]*serviceannotations.Wanted{}, residents: newResidents()}
	txn := p.DB.WriteTxn(p.KubernetesServices, p.Slices, p.Pods, p.Endpoints, p.Cluster)
	defer txn.Commit()
	var errs [5]error
	in.services, errs[0] = changes.Follow(txn, p.KubernetesServices)
	in.slices, errs[1] = changes.Follow(txn, p.Slices)
	in.pods, errs[2] = changes.Follow(txn, p.Pods)
	in.endpoints, errs[3] = changes.Follow(txn, p.Endpoints)
	in.nodes, errs[4] = clusternodes.Follow(txn, p.Cluster)
	return in, errors.Join(errs[:]...)
}

func (in *inputs) close() {
	in.services.Close()
	in.slices.Close()
	in.pods.Close()
	in.endpoints.Close()
	in.nodes.Close()
}

// read queues the services that what has changed up to a snapshot concerns, names the ranges where nodes or their pods are or were, and adds to changed what
// closes when more has.
func (in *inputs) read(txn statedb.ReadTxn, changed *statedb.WatchSet, q *queue, moved func(netip.Prefix)) {
	for _, change := range in.services.UpTo(txn, changed) {
		in.annotations(change.Object, change.Deleted)
		q.claim(change.Object.Key())
	}
	for _, change := range in.slices.UpTo(txn, changed) {
		in.slice(txn, change.Object, change.Deleted, q.follow)
	}
	for _, change := range in.pods.UpTo(txn, changed) {
		in.pod(txn, change.Object, q.claim)
		in.residents.pod(change.Object, change.Deleted)
	}
	for _, change := range in.endpoints.UpTo(txn, changed) {
		in.residents.endpoint(change.Object, change.Deleted)
	}
	in.nodes.UpTo(txn, changed, func(before, after *nodes.Node) {
		for addr := range clusternodes.Differing(clusternodes.AddressesOf(before), clusternodes.AddressesOf(after)) {
			moved(clusternodes.Whole(addr))
		}
		for cidr := range clusternodes.Differing(clusternodes.RangesOf(before), clusternodes.RangesOf(after)) {
			moved(cidr)
		}
	})
}

// annotations parses those of a Service that has changed. A selector may have 4,096 bytes, and a Service is computed with each change of its endpoints.
func (in *inputs) annotations(s *k8s.Service, gone bool) {
	delete(in.wanted, s.Key())
	if !gone && serviceannotations.Any(s.Annotations) {
		wanted := serviceannotations.Parse(s.Annotations)
		in.wanted[s.Key()] = &wanted
	}
}

// wants returns what a Service wants by annotations.
func (in *inputs) wants(name string) *serviceannotations.Wanted {
	if wanted := in.wanted[name]; wanted != nil {
		return wanted
	}
	return &serviceannotations.Wanted{}
}

// slice names the service of a slice, and the one that it may have belonged to: names of slices begin with that of their service
// where nobody writes them by hand.
func (in *inputs) slice(txn statedb.ReadTxn, s *k8s.EndpointSlice, gone bool, concerned func(string)) {
	if s.Service != "" {
		concerned(s.Namespace + "/" + s.Service)
	}
	if before, stray := in.strays[s.Key()]; stray {
		concerned(before)
		delete(in.strays, s.Key())
	}
	if s.Service != "" && !gone && !strings.HasPrefix(s.Name, s.Service+"-") {
		in.strays[s.Key()] = s.Namespace + "/" + s.Service
	}
	for i, r := range s.Name {
		if r != '-' || s.Name[:i] == s.Service {
			continue
		}
		if other, _, found := in.KubernetesServices.Get(txn, k8s.ServiceByName(s.Namespace+"/"+s.Name[:i])); found {
			concerned(other.Key())
		}
	}
}

// pod names the services of a pod's host ports, of now and of before.
func (in *inputs) pod(txn statedb.ReadTxn, p *k8s.Pod, concerned func(string)) {
	for row := range in.Services.Prefix(txn, services.ByName(p.Key()+hostPortMark)) {
		concerned(row.Name)
	}
	for i := range p.HostPorts {
		concerned(hostPortName(p, p.HostPorts[i].Port))
	}
}

// waiting says what must be read before anything can be computed, or nothing.
func (in *inputs) waiting(txn statedb.ReadTxn, changed *statedb.WatchSet) string {
	_, more := in.Sources.AllWatch(txn)
	changed.Add(more)
	for _, t := range in.needed() {
		row, _, found := in.Sources.Get(txn, sources.ByTable(t.Name()))
		switch {
		case !found:
			return "the table " + t.Name() + " to be read"
		case !row.Usable():
			return fmt.Sprintf("the table %s: %s: %s", t.Name(), row.Producer, row.WaitingFor)
		}
	}
	if done, more := in.NodeAddresses.Initialized(txn); !done {
		changed.Add(more)
		return "the addresses of this node"
	}
	if done, more := in.Endpoints.Initialized(txn); !done {
		changed.Add(more)
		return "the endpoints of this node"
	}
	if in.resolved {
		return ""
	}
	if name := clusternodes.Unresolved(txn, in.Nodes, in.CiliumNodes, in.Cluster); name != "" {
		return "the addresses and ranges of the node " + name // read follows the table nodes
	}
	in.resolved = true
	return ""
}

// complete tells whether all that is needed is the source's own list and no copy of before.
func (in *inputs) complete(txn statedb.ReadTxn, changed *statedb.WatchSet) bool {
	complete := true
	for _, t := range in.needed() {
		row, _, _ := in.Sources.Get(txn, sources.ByTable(t.Name()))
		done, more := t.Initialized(txn)
		if !done {
			changed.Add(more)
		}
		complete = complete && done && row.State == sources.Synced
	}
	return complete
}

// needed are the tables without which services cannot be known. With --ipam=cluster-pool CiliumNodes alone say where pods are, whose addresses no service may have.
func (in *inputs) needed() []statedb.TableMeta {
	tables := []statedb.TableMeta{in.KubernetesServices, in.Slices, in.Pods, in.Nodes}
	if in.Rules.agent.IPAM == settings.IPAMClusterPool {
		tables = append(tables, in.CiliumNodes)
	}
	return tables
}

// world makes what all services depend on; old is nil when it has not changed.
func (in *inputs) world(txn statedb.ReadTxn, changed *statedb.WatchSet, old *world) *world {
	addresses, more := in.NodeAddresses.AllWatch(txn)
	changed.Add(more)
	self, _, more, _ := in.Nodes.GetWatch(txn, k8s.NodeByName(in.Rules.agent.NodeName))
	changed.Add(more)
	now := seen{self, in.NodeAddresses.Revision(txn), in.apiServerRevision(txn, changed)}
	if old != nil && now == in.seen {
		return old
	}
	in.seen = now
	w := &world{rules: &in.Rules, nodes: in.nodes.Index, apiServers: in.apiServersOf(txn)}
	if self != nil {
		w.zone, w.labels = self.Labels["topology.kubernetes.io/zone"], self.Labels
	}
	for a := range addresses {
		addr := a.Addr.WithZone("")
		w.own = append(w.own, addr)
		if a.NodePort && in.Rules.serves(addr.Is4()) && usable(addr) {
			w.nodePorts = append(w.nodePorts, addr)
		}
	}
	for _, list := range []*[]netip.Addr{&w.own, &w.nodePorts} {
		slices.SortFunc(*list, netip.Addr.Compare)
		*list = slices.Compact(*list)
	}
	return w
}
