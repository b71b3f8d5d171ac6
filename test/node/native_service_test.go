package node_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/test/nodekit"
)

const (
	farPort     = 8080  // of the server
	farService  = 80    // of the service at its cluster IP
	farNodePort = 30080 // of the service at addresses of nodes
)

// A service whose only backend is a pod of another node is reachable at its cluster IP from pods and processes of both nodes, and at its node port on either
// node from a host outside.
func TestPrivilegedNative_ServicesBetweenNodes(t *testing.T) {
	t.Parallel()
	servicesBetweenNodes(t, "--routing-mode=native", "--auto-direct-node-routes")
}

func servicesBetweenNodes(t *testing.T, args ...string) {
	t.Helper()
	servicesBetweenNodesThat(t, func(*testing.T, []kubeNode) {}, args...)
}

// servicesBetweenNodesThat does the same as servicesBetweenNodes, after areReady has waited until the nodes are ready.
func servicesBetweenNodesThat(t *testing.T, areReady func(*testing.T, []kubeNode), args ...string) {
	t.Helper()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			all := startKubeCluster(t, 2, append(slices.Clone(args), mode.args...)...)
			areReady(t, all)
			one, two := all[0], all[1]
			server := two.startPod(t, "server", map[string]string{"app": "server"})
			client := one.startPod(t, "client", map[string]string{"app": "client"})
			neighbour := two.startPod(t, "neighbour", map[string]string{"app": "client"})
			for _, family := range families {
				t.Run(family.name, func(t *testing.T) { serveBetweenNodes(t, all, client, neighbour, server, family.ipv6, mode.packets) })
			}
		})
	}
}

// serveBetweenNodes tests a service of one family whose only backend is a server of the second node; neighbour is another pod of that node. packets says that
// there is no translation at sockets.
func serveBetweenNodes(t *testing.T, all []kubeNode, client, neighbour, server *nodekit.Pod, ipv6, packets bool) {
	t.Helper()
	one, two := all[0], all[1]
	clusterIP := serveFar(t, one, server, ipv6)
	for _, n := range all {
		n.awaitRow(t, "frontends", netip.AddrPortFrom(n.UplinkAddr(ipv6), farNodePort).String())
	}
	at := netip.AddrPortFrom(server.Addr(ipv6), farPort)
	for name, path := range map[string]struct {
		from nodekit.NetNS
		to   netip.AddrPort
	}{
		"a pod of the other node":                             {client, netip.AddrPortFrom(clusterIP, farService)},
		"a pod of the same node":                              {neighbour, netip.AddrPortFrom(clusterIP, farService)},
		"the backend itself":                                  {server, netip.AddrPortFrom(clusterIP, farService)},
		"the other node":                                      {one.Host(), netip.AddrPortFrom(clusterIP, farService)},
		"the same node":                                       {two.Host(), netip.AddrPortFrom(clusterIP, farService)},
		"a pod by the node port of a node":                    {client, netip.AddrPortFrom(two.UplinkAddr(ipv6), farNodePort)},
		"the backend itself by the node port of its node":     {server, netip.AddrPortFrom(two.UplinkAddr(ipv6), farNodePort)},
		"the backend itself by the address of the other node": {server, netip.AddrPortFrom(one.UplinkAddr(ipv6), farNodePort)},
		"outside by the other node":                           {one.OutsideHost(), netip.AddrPortFrom(one.UplinkAddr(ipv6), farNodePort)},
		"outside by the same node":                            {one.OutsideHost(), netip.AddrPortFrom(two.UplinkAddr(ipv6), farNodePort)},
	} {
		if _, isPod := path.from.(*nodekit.Pod); packets && !isPod && path.to.Port() == farService {
			continue // a process of a node needs the translation at sockets, or kube-proxy
		}
		if err := nodekit.TCPThrough(path.from, path.to, server, at, 1<<16); err != nil {
			t.Errorf("TCP from %s to %s: %v", name, path.to, err)
		}
		if err := nodekit.UDPThrough(path.from, path.to, server, at, 100); err != nil {
			t.Errorf("UDP from %s to %s: %v", name, path.to, err)
		}
	}
}

// serveFar creates a service of one family with a pod as its backend, and returns its cluster IP.
func serveFar(t *testing.T, n kubeNode, server *nodekit.Pod, ipv6 bool) netip.Addr {
	t.Helper()
	name, clusterIP, kind, protocol := "far4", "10.96.0.80", discoveryv1.AddressTypeIPv4, corev1.IPv4Protocol
	if ipv6 {
		name, clusterIP, kind, protocol = "far6", "fd00:96::80", discoveryv1.AddressTypeIPv6, corev1.IPv6Protocol
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "u"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: clusterIP, ClusterIPs: []string{clusterIP}, IPFamilies: []corev1.IPFamily{protocol}}}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-1", UID: "u",
		Labels: map[string]string{discoveryv1.LabelServiceName: name}}, AddressType: kind,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{server.Addr(ipv6).String()}}}}
	for _, p := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		port, portName := int32(farPort), strings.ToLower(string(p))
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: portName, Protocol: p, Port: farService, NodePort: farNodePort})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &portName, Protocol: &p, Port: &port})
	}
	n.server.Put(service, slice)
	return netip.MustParseAddr(clusterIP)
}
