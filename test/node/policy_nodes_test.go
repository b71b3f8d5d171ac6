package node_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
)

// entities are the entities that one pod each of the nodes in [processesOfNodes] may reach, in both directions. The pod with the entity world may also reach
// pods of the same name.
var entities = []string{"remote-node", "kube-apiserver", "host", "world"}

// theServer is the node with the API server of policies.
const theServer = "node-1"

// processesOfNodes tries connections between processes of two nodes and pods of both that may reach one entity or everything. The API server is at an address
// of [theServer], in one family after the other.
func processesOfNodes(t *testing.T, all []kubeNode, withIPv4 bool) {
	t.Helper()
	server := all[0].server
	for _, entity := range entities {
		rules := func(side string) string {
			if entity == "world" {
				return fmt.Sprintf(`[{"%[1]sEntities": ["world"]}, {"%[1]sEndpoints": [{"matchLabels": {"entity": "world"}}]}]`, side)
			}
			return fmt.Sprintf(`[{"%sEntities": [%q]}]`, side, entity)
		}
		server.Put(&ciliumv2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: entity}, Spec: json.RawMessage(
			fmt.Sprintf(`{"endpointSelector": {"matchLabels": {"entity": %q}}, "ingress": %s, "egress": %s}`, entity, rules("from"), rules("to")))})
	}
	addrs := func(of func(ipv6 bool) netip.Addr) (both [2]netip.Addr) {
		for i, family := range families {
			if family.ipv6 || withIPv4 {
				both[i] = of(family.ipv6)
			}
		}
		return both
	}
	w := &world{}
	for i, n := range all {
		for _, entity := range entities {
			n.awaitRow(t, "policies", "default/"+entity)
		}
		w.parties = append(w.parties, &party{n.Host(), n.Name(), addrs(n.UplinkAddr), nil})
		for _, entity := range append([]string{"open"}, entities...) {
			name := n.Name() + "/" + entity
			pod := n.startPod(t, strings.ReplaceAll(name, "/", "-"), map[string]string{"entity": entity})
			w.parties = append(w.parties, &party{pod, name, addrs(pod.Addr), pod})
			for _, addr := range addrs(pod.Addr) {
				awaitEntry(t, all[1-i], addr, n.identityOf(t, pod).Identity)
			}
		}
	}
	for _, p := range w.parties {
		for i, addr := range p.addrs {
			if addr.IsValid() {
				echoDatagrams(t, p, p.addrs[i:i+1])
			}
		}
	}
	own, routers := addrs(all[0].UplinkAddr), addrs(w.party(theServer+"/open").pod.Gateway)
	for at, family := range families {
		if !own[at].IsValid() {
			continue
		}
		server.Put(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", UID: "u",
			Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}}, AddressType: discoveryv1.AddressType(family.name),
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{own[at].String()}}}})
		awaitEntry(t, all[1], own[at], identity.KubeAPIServer)
		awaitEntry(t, all[1], own[1-at], identity.RemoteNode)
		awaitEntry(t, all[1], routers[1-at], identity.RemoteNode)
		for _, addr := range addrs(all[1].UplinkAddr) {
			awaitEntry(t, all[0], addr, identity.RemoteNode)
		}
		t.Run("the API server has an address of "+family.name, func(t *testing.T) {
			w.compare(t, []service{{"tcp", 80}, {"udp", 80}, {"icmp", 0}}, func(f flow) bool {
				server := f.ipv6 == family.ipv6
				ofLocalHost := strings.HasPrefix(f.to, f.from+"/") // passes regardless of policies
				return entityAllows(f.from, f.to, server) && (ofLocalHost || entityAllows(f.to, f.from, server))
			})
		})
	}
}

// entityAllows reports whether the policies of a party, if it is a pod, allow a peer. server says that the addresses are of the family of the API server: on
// its own node, the API server is the local host at any address.
func entityAllows(subject, peer string, server bool) bool {
	node, entity, isPod := strings.Cut(subject, "/")
	other, kind, isPeerPod := strings.Cut(peer, "/")
	switch {
	case !isPod || entity == "open":
		return true
	case isPeerPod:
		return entity == "world" && kind == "world"
	case entity == "remote-node":
		return node != other
	case entity == "kube-apiserver":
		return other == theServer && (server || node == other)
	default:
		return entity == "host" && node == other
	}
}

// awaitEntry waits until the datapath of a node has an identity for an address. An invalid address returns at once.
func awaitEntry(t *testing.T, n kubeNode, addr netip.Addr, identity uint32) {
	t.Helper()
	if !addr.IsValid() {
		return
	}
	eventually(t, func() error {
		text, err := n.Waggle(t.Context(), "db", "show", "ipcache")
		if err == nil && !written(text, netip.PrefixFrom(addr, addr.BitLen()).String(), 1, fmt.Sprint(identity)) {
			err = fmt.Errorf("%s has not identity %d:\n%s", addr, identity, text)
		}
		return err
	})
}
