package policymaps

import (
	"bytes"
	"fmt"
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// copyInputs copies the rows that [history.change] writes, except those of endpoints and identities.
func copyInputs(from, to *bench) {
	copyRows(from, to, func(w *bench) statedb.Table[*k8s.NetworkPolicy] { return w.KubernetesPolicies })
	copyRows(from, to, func(w *bench) statedb.Table[*cilium.Policy] { return w.CiliumPolicies })
	copyRows(from, to, func(w *bench) statedb.Table[*cilium.CIDRGroup] { return w.CIDRGroups })
	copyRows(from, to, func(w *bench) statedb.Table[*k8s.Service] { return w.Services })
	copyRows(from, to, func(w *bench) statedb.Table[*k8s.EndpointSlice] { return w.Slices })
	copyRows(from, to, func(w *bench) statedb.Table[*k8s.Namespace] { return w.Namespaces })
	copyRows(from, to, func(w *bench) statedb.Table[*k8s.Pod] { return w.Pods })
	copyRows(from, to, func(w *bench) statedb.Table[*cilium.Endpoint] { return w.Remote })
	copyRows(from, to, func(w *bench) statedb.Table[*ipcache.Entry] { return w.IPCache })
	copyRows(from, to, func(w *bench) statedb.Table[*nodes.Node] { return w.Nodes })
	copyRows(from, to, func(w *bench) statedb.Table[nodeaddresses.Address] { return w.NodeAddresses })
	copyRows(from, to, func(w *bench) statedb.Table[sources.Source] { return w.params.Sources })
}

// change makes one random change of the inputs.
func (h *history) change() {
	h.t.Helper()
	switch h.random.IntN(7) {
	case 0:
		h.someChange(h.t, h.random)
	case 1, 6:
		h.changeLocal()
	case 2:
		h.changeKubernetesPolicy()
	case 3:
		h.changeCiliumPolicy()
	case 4:
		h.changeReference()
	case 5:
		h.changePeer()
	}
}

// maybe puts a row, or deletes it in one of three cases.
func maybe[R any](h *history, table statedb.Table[R], row R) {
	h.t.Helper()
	if h.random.IntN(3) == 0 {
		remove(h.t, h.DB, rw(table), row)
		return
	}
	put(h.t, h.DB, rw(table), row)
}

// ports returns the named ports of a pod.
func (h *history) ports() []k8s.ContainerPort {
	other := webPort
	other.Number = 8080
	return [][]k8s.ContainerPort{nil, {webPort}, {webPort}, {other}}[h.random.IntN(4)]
}

// changeLocal changes an endpoint with a pod and an address, its pod, its namespace, or whether the datapath applies a write.
func (h *history) changeLocal() {
	h.t.Helper()
	pick := h.random.IntN
	id, app, namespace := uint16(1+pick(6)), pick(4), pick(2)
	switch pick(5) {
	case 0, 1:
		ep := &endpoints.Endpoint{ID: id, ContainerID: fmt.Sprint(int(id) + 6*pick(2)), IfName: "eth0", HostIfIndex: int(id),
			K8sNamespace: fmt.Sprint("ns-", namespace), K8sPodName: fmt.Sprint("pod-", pick(3)), K8sUID: "u",
			IPv4: netip.AddrFrom4([4]byte{10, 2, 0, byte(id)}), Labels: labelsOf(app, namespace), Ports: h.ports()}
		if pick(5) == 0 {
			ep.LabelsMissing = "those of its namespace"
		}
		maybe(h, h.Endpoints, ep)
	case 2:
		maybe(h, h.Pods, &k8s.Pod{Namespace: fmt.Sprint("ns-", namespace), Name: fmt.Sprint("pod-", pick(3)), UID: "u",
			Labels: map[string]string{"app": fmt.Sprint("app-", app)}})
	case 3:
		maybe(h, h.Namespaces, &k8s.Namespace{Name: fmt.Sprint("ns-", namespace), Labels: map[string]string{"team": fmt.Sprint("team-", pick(2))}})
	case 4:
		if fake := h.Entries.(fakeEntries).fakeMaps; h.tight {
			fake.mu.Lock()
			defer fake.mu.Unlock()
			fake.failures = 1 + pick(3)
			fake.fail = []string{"put policy", "delete policy", "put cidr", "delete cidr", "put identities", "put classes", "raise"}[pick(7)]
		}
	}
}

// changeKubernetesPolicy changes a policy about classes, identities, address ranges or named ports.
func (h *history) changeKubernetesPolicy() {
	h.t.Helper()
	pick := h.random.IntN
	p := &k8s.NetworkPolicy{Namespace: fmt.Sprint("ns-", pick(2)), Name: fmt.Sprint("k-", pick(4)), IsIngress: true}
	if pick(3) > 0 {
		p.PodSelector.MatchLabels = map[string]string{"app": fmt.Sprint("app-", pick(4))}
	}
	if pick(6) == 0 {
		p.PodSelector.MatchLabels = map[string]string{"role": "none"}
	}
	tcp := func(port string) []k8s.PolicyPort { return []k8s.PolicyPort{{Protocol: "TCP", Port: port}} }
	all := []k8s.Peer{{Namespaces: &k8s.Selector{}}}
	switch pick(7) {
	case 0:
		p.Ingress = []k8s.PolicyRule{{Peers: all, Ports: tcp("80")}}
	case 1:
		p.Ingress = []k8s.PolicyRule{{Peers: []k8s.Peer{{Namespaces: &k8s.Selector{MatchLabels: map[string]string{"team": "team-1"}}}}}}
	case 2:
		pods := &k8s.Selector{MatchLabels: map[string]string{"app": fmt.Sprint("app-", pick(4))}}
		p.Ingress = []k8s.PolicyRule{{Peers: []k8s.Peer{{Pods: pods}}, Ports: tcp("web")}}
	case 3:
		p.IsEgress, p.Egress = true, []k8s.PolicyRule{{Peers: []k8s.Peer{{IPBlock: netip.MustParsePrefix("50.0.0.0/8"),
			Except: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{50, byte(pick(3)), 0, 0}), 16)}}}}}
	case 4, 5:
		p.IsEgress, p.Egress = true, []k8s.PolicyRule{{Peers: all, Ports: tcp("web")}}
	case 6:
		p.IsEgress, p.Egress = true, []k8s.PolicyRule{{Peers: []k8s.Peer{{IPBlock: netip.MustParsePrefix("10.2.0.0/16")}}, Ports: tcp("web")}}
	}
	maybe(h, h.KubernetesPolicies, p)
}

// changeCiliumPolicy changes a policy that refers to other objects, that denies, that narrows the rules of other policies, or that is invalid. It may be in audit
// mode.
func (h *history) changeCiliumPolicy() {
	h.t.Helper()
	pick := h.random.IntN
	p := rulesOf(fmt.Sprint("ns-", pick(2)), fmt.Sprint("c-", pick(5)), fmt.Sprint("app-", pick(5)), []string{
		`"ingress": [{"fromCIDRSet": [{"cidrGroupRef": "g-0"}]}]`,
		`"egress": [{"toCIDRSet": [{"cidrGroupRef": "g-1"}]}]`,
		`"egress": [{"toServices": [{"k8sService": {"serviceName": "db"}}]}]`,
		`"egress": [{"toServices": [{"k8sServiceSelector": {"selector": {"matchLabels": {"plan": "gold"}}}}]}]`,
		`"egress": [{"toEntities": ["kube-apiserver"]}]`,
		`"ingressDeny": [{"fromEndpoints": [{"matchLabels": {"app": "app-1"}}]}], "ingress": [{"fromEntities": ["cluster"]}]`,
		`"egressDeny": [{"toEntities": ["cluster"], "toPorts": [{"ports": [{"port": "web", "protocol": "TCP"}]}]}]`,
		`"egressDeny": [{"toCIDR": ["10.2.0.0/16"], "toPorts": [{"ports": [{"port": "web", "protocol": "TCP"}]}]}]`,
		`"ingress": [{"fromRequires": [{"matchLabels": {"app": "app-1"}}]}]`,
		`"egress": [{"toRequires": [{"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["app-2"]}]}]}]`,
		`"ingress": [{"fromEndpoints": [{"matchLabels": {"app": ""}}, {"matchLabels": {"app": "a b"}}], "toPorts": [{"ports": [{"port": "0x"}]}]}]`,
	}[pick(11)])
	if pick(6) == 0 {
		p.Annotations = map[string]string{policy.ModeAnnotation: policy.ModeAudit}
	}
	if pick(3) == 0 {
		p.Spec = bytes.Replace(p.Spec, []byte(`{"app": "app-`), []byte(`{"io.cilium.k8s.namespace.labels.team": "team-`), 1)
	}
	maybe(h, h.CiliumPolicies, p)
}

// changeReference changes an object to which policies refer, or whether such objects can be read.
func (h *history) changeReference() {
	h.t.Helper()
	pick := h.random.IntN
	namespace := fmt.Sprint("ns-", pick(2))
	switch pick(8) {
	case 0, 1:
		g := &cilium.CIDRGroup{Name: fmt.Sprint("g-", pick(2))}
		for i := range pick(4) {
			g.CIDRs = append(g.CIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{60, byte(i + pick(2)*10), 0, 0}), 16))
		}
		maybe(h, h.CIDRGroups, g)
	case 2, 3:
		s := service(namespace, []string{"db", "db", "queue"}[pick(3)], []string{"", "", "app=app-1", "app=app-2"}[pick(4)])
		s.Labelled = []string{"", "plan=gold", "plan=basic"}[pick(3)]
		maybe(h, h.Services, s)
	case 4, 5:
		maybe(h, h.Slices, sliceOf(namespace, fmt.Sprint("slice-", pick(2)), []string{"db", "db", "queue"}[pick(3)], pick(3)))
	case 6:
		h.changeAPIServers()
	case 7:
		put(h.t, h.DB, rw(h.params.Sources), sources.Source{Table: []string{"cilium-cidrgroups", "k8s-services", "k8s-endpointslices"}[pick(3)],
			State: []sources.State{sources.Waiting, sources.Synced, sources.Synced, sources.Synced}[pick(4)]})
	}
}

// changeAPIServers changes the addresses of the API servers, or the addresses of the node.
func (h *history) changeAPIServers() {
	h.t.Helper()
	pick := h.random.IntN
	addr := func() netip.Addr { return netip.AddrFrom4([4]byte{192, 168, 9, byte(pick(3))}) }
	if pick(2) == 0 {
		maybe(h, h.NodeAddresses, nodeaddresses.Address{Addr: addr(), Device: "eth0"})
		return
	}
	maybe(h, h.Slices, &k8s.EndpointSlice{Namespace: "default", Name: "kubernetes", Service: "kubernetes", AddressType: "IPv4",
		Endpoints: []k8s.SliceEndpoint{{Addrs: []netip.Addr{addr()}}, {Addrs: []netip.Addr{addr()}}}})
}

// changePeer changes a pod on another node, its node, its identity or its address in ipcache.
func (h *history) changePeer() {
	h.t.Helper()
	pick := h.random.IntN
	node := byte(pick(3))
	addr := netip.AddrFrom4([4]byte{10, 2, node, byte(1 + pick(3))})
	number := uint32(9000 + pick(5))
	switch pick(7) {
	case 0, 1, 2:
		maybe(h, h.Remote, cilium.NewEndpoint(cilium.EndpointFields{Namespace: []string{"far", "far", "ns-0"}[pick(3)], Name: fmt.Sprint("pod-", pick(5)),
			Identity: number, Node: netip.AddrFrom4([4]byte{192, 168, 0, node}), Addrs: []netip.Addr{addr}, Ports: h.ports()}))
	case 3:
		maybe(h, h.Nodes, &nodes.Node{Name: fmt.Sprint("node-", node), CIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 2, byte(pick(3)), 0}), 24)},
			Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: netip.AddrFrom4([4]byte{192, 168, 0, node})}}})
	case 4:
		all := labelsOf(pick(4), pick(2))
		if pick(2) == 0 {
			all["k8s:io.cilium.k8s.namespace.labels.team"] = fmt.Sprint("team-", pick(2))
		}
		maybe(h, h.Identities, &identities.Identity{ID: number, Labels: all})
	case 5, 6:
		claim := ipcache.Claim{Prefix: netip.PrefixFrom(addr, 32), Identity: number, Node: fmt.Sprint("node-", node), Source: ipcache.SourceRemote}
		maybe(h, h.IPCache, ipcache.NewEntry(claim, ipcache.OwnerCiliumEndpoints))
	}
}
