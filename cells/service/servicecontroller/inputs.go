package servicecontroller

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/serviceannotations"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// inputs finds the services that a change concerns. It is for one goroutine.
type inputs struct {
	params
	services *changefeed.Feed[*k8s.Service]
	slices   *changefeed.Feed[*k8s.EndpointSlice]
	pods     *changefeed.Feed[*k8s.Pod]
	// strays are the services of slices whose name neither is the name of the service nor begins with it, by key of the slice.
	strays map[string]string
	// wanted has the parsed annotations of Services, by name. Services without such annotations are absent. It changes only between two passes.
	wanted map[string]*serviceannotations.Wanted
	// hostPorts has the host ports of pods by "namespace/name" and by the name of their service. It changes only between two passes.
	hostPorts map[string]map[string][]k8s.HostPort
	nodes     *clusternodes.Follower
	resolved  bool // each node that was known at the start has its addresses and ranges
	revision  worldRevision
	endpoints *changefeed.Feed[*endpoints.Endpoint]
	residents residents
}

// worldRevision identifies the inputs of the current world.
type worldRevision struct {
	self       *k8s.Node // nil without a row of this node
	addresses  statedb.Revision
	apiServers [2]statedb.Revision
}

// newInputs subscribes to the tables. The first [inputs.read] handles all existing rows.
func newInputs(p params) (in *inputs, err error) {
	in = &inputs{params: p, strays: map[string]string{}, wanted: map[string]*serviceannotations.Wanted{},
		hostPorts: map[string]map[string][]k8s.HostPort{}, residents: newResidents()}
	txn := p.DB.WriteTxn(p.KubernetesServices, p.Slices, p.Pods, p.Endpoints, p.Cluster)
	defer txn.Commit()
	var errs [5]error
	in.services, errs[0] = changefeed.Follow(txn, p.KubernetesServices)
	in.slices, errs[1] = changefeed.Follow(txn, p.Slices)
	in.pods, errs[2] = changefeed.Follow(txn, p.Pods)
	in.endpoints, errs[3] = changefeed.Follow(txn, p.Endpoints)
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

// read queues the services that changes up to a snapshot concern. It calls moved with each address and pod range that a node has gained or lost, and adds to
// changed the channels that close when there are further changes.
func (in *inputs) read(txn statedb.ReadTxn, changed *statedb.WatchSet, q *queue, moved func(netip.Prefix)) {
	for _, change := range in.services.UpTo(txn, changed) {
		in.annotations(change.Object, change.Deleted)
		q.claim(change.Object.Key())
	}
	for _, change := range in.slices.UpTo(txn, changed) {
		in.slice(txn, change.Object, change.Deleted, q.follow)
	}
	for _, change := range in.pods.UpTo(txn, changed) {
		in.indexHostPorts(change.Object, change.Deleted)
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

// annotations parses the annotations of a Service when the Service changes, and not when it is computed: a selector may have 4,096 bytes, and each change of
// endpoints computes the Service.
func (in *inputs) annotations(s *k8s.Service, gone bool) {
	delete(in.wanted, s.Key())
	if !gone && serviceannotations.Any(s.Annotations) {
		wanted := serviceannotations.Parse(s.Annotations)
		in.wanted[s.Key()] = &wanted
	}
}

// wants returns the parsed annotations of a Service.
func (in *inputs) wants(name string) *serviceannotations.Wanted {
	if wanted := in.wanted[name]; wanted != nil {
		return wanted
	}
	return &serviceannotations.Wanted{}
}

// slice calls concerned with the service of a slice, and with the services to which the slice may have belonged before. The name of a slice begins with the
// name of its service, or is that name, except for some slices that users write.
func (in *inputs) slice(txn statedb.ReadTxn, s *k8s.EndpointSlice, gone bool, concerned func(string)) {
	if s.Service != "" {
		concerned(s.Namespace + "/" + s.Service)
	}
	if before, stray := in.strays[s.Key()]; stray {
		concerned(before)
		delete(in.strays, s.Key())
	}
	if s.Service != "" && !gone && s.Name != s.Service && !strings.HasPrefix(s.Name, s.Service+"-") {
		in.strays[s.Key()] = s.Namespace + "/" + s.Service
	}
	for i := range len(s.Name) + 1 {
		if i < len(s.Name) && s.Name[i] != '-' || s.Name[:i] == s.Service {
			continue
		}
		if other, _, found := in.KubernetesServices.Get(txn, k8s.ServiceByName(s.Namespace+"/"+s.Name[:i])); found {
			concerned(other.Key())
		}
	}
}

// pod calls concerned with the services of a pod's host ports, of the current and the previous version of the pod.
func (in *inputs) pod(txn statedb.ReadTxn, p *k8s.Pod, concerned func(string)) {
	for row := range in.Services.Prefix(txn, services.ByName(p.Key()+hostPortMark)) {
		concerned(row.Name)
	}
	for i := range p.HostPorts {
		concerned(hostPortName(p, p.HostPorts[i].Port))
	}
}

// indexHostPorts follows a change of a pod. Without the index, each host port of a pod would read all of them.
func (in *inputs) indexHostPorts(p *k8s.Pod, gone bool) {
	delete(in.hostPorts, p.Key())
	if !gone && len(p.HostPorts) > 0 {
		in.hostPorts[p.Key()] = hostPortsByName(p)
	}
}

// waiting returns the name of an input that is missing for the computation, or the empty string.
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
		return "the addresses and ranges of the node " + name // read follows the table nodes and adds its channel
	}
	in.resolved = true
	return ""
}

// complete reports whether all required tables are synced with their sources, and none is a snapshot on disk.
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

// needed returns the required tables. With --ipam=cluster-pool only CiliumNodes contain the pod ranges, whose addresses no service may claim.
func (in *inputs) needed() []statedb.TableMeta {
	tables := []statedb.TableMeta{in.KubernetesServices, in.Slices, in.Pods, in.Nodes}
	if in.Rules.agent.IPAM == agentconfig.IPAMClusterPool {
		tables = append(tables, in.CiliumNodes)
	}
	return tables
}

// world returns the data that all services depend on. It returns old, the current world, if nothing has changed. old is nil in the first pass.
func (in *inputs) world(txn statedb.ReadTxn, changed *statedb.WatchSet, old *world) *world {
	addresses, more := in.NodeAddresses.AllWatch(txn)
	changed.Add(more)
	self, _, more, _ := in.Nodes.GetWatch(txn, k8s.NodeByName(in.Rules.agent.NodeName))
	changed.Add(more)
	now := worldRevision{self, in.NodeAddresses.Revision(txn), in.apiServerRevision(txn, changed)}
	if old != nil && now == in.revision {
		return old
	}
	in.revision = now
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
