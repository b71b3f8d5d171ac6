package node_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

const webNodePort = 30080

// nodePorts is the end of a spec that gives the ports of "web" a node port. Its arguments are the type and the external traffic policy.
const nodePorts = ", type: %s, ports: [{name: tcp, port: 80, targetPort: 8080, protocol: TCP, nodePort: 30080}, " +
	"{name: udp, port: 80, targetPort: 8080, protocol: UDP, nodePort: 30080}], externalTrafficPolicy: %s"

// webRest is [webSpec] without its ports.
const webRest = "clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, \"fd00:10:96::10\"], ipFamilies: [IPv4, IPv6]"

var uplinks = []netip.Addr{nodekit.UplinkIPv4.Addr(), nodekit.UplinkIPv6.Addr()}

// each calls f for the addresses over TCP and UDP concurrently, because a missing reply takes the whole timeout.
func each(addrs []netip.Addr, port uint16, f func(network string, to netip.AddrPort)) {
	var all sync.WaitGroup
	for _, addr := range addrs {
		for _, network := range networks {
			all.Go(func() { f(network, netip.AddrPortFrom(addr, port)) })
		}
	}
	all.Wait()
}

// seesClient requires that a server sees a client under an address.
func (m *serviceFixture) seesClient(t *testing.T, from nodekit.NetNS, network string, to netip.AddrPort, want netip.Addr) {
	t.Helper()
	if a, err := request(t.Context(), from, network, to); err != nil || a.client != want {
		t.Errorf("%s over %s: %q sees %v (%v), want %v", to, network, a.server, a.client, err, want)
	}
}

// A node port is served to the outside, to pods, and, where sockets are translated, to the node under all of its addresses. The backend, which is on this node,
// sees the client. With externalTrafficPolicy Local and no backend on this node, clients outside get no reply.
func (m *serviceFixture) nodePort(t *testing.T, packets bool) {
	client := m.pod(t, "client")
	m.pod(t, "one", 8080)
	m.pod(t, "two", 8080)
	write := func(policy string) {
		t.Helper()
		m.service(t, "web", webRest+fmt.Sprintf(nodePorts, "NodePort", policy))
	}
	write("Cluster")
	m.backends(t, "one", "two")
	each(uplinks, webNodePort, func(network string, to netip.AddrPort) {
		outside := outsideAddr(to.Addr().Is6())
		m.served(t, to.String()+"/"+strings.ToUpper(network), 2)
		m.reaches(t, m.OutsideHost(), network, to, "one", "two")
		m.seesClient(t, m.OutsideHost(), network, to, outside)
		m.reaches(t, client, network, to, "one", "two")
		m.seesClient(t, client, network, to, client.Addr(to.Addr().Is6()))
		m.reaches(t, m.pods["one"], network, to, "one", "two")
		if !packets {
			m.reaches(t, m.Host(), network, to, "one", "two")
		}
	})
	if !packets {
		each([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, webNodePort, func(network string, to netip.AddrPort) {
			m.reaches(t, m.Host(), network, to, "one", "two")
		})
	}
	m.backends(t)
	each(uplinks, webNodePort, func(network string, to netip.AddrPort) {
		m.served(t, to.String()+"/"+strings.ToUpper(network), 0)
		m.rejected(t, m.OutsideHost(), network, to)
		m.rejected(t, client, network, to)
	})
}

// With externalTrafficPolicy Local, a node without a backend sends no reply to clients outside and serves clients in the cluster.
func (m *serviceFixture) nodePortLocal(t *testing.T, _ bool) {
	client := m.pod(t, "client")
	m.pod(t, "one", 8080)
	m.service(t, "web", webRest+fmt.Sprintf(nodePorts, "NodePort", "Local"))
	m.backends(t, "one")
	each(uplinks, webNodePort, func(network string, to netip.AddrPort) {
		m.served(t, to.String()+"/"+strings.ToUpper(network), 1)
		m.reaches(t, m.OutsideHost(), network, to, "one")
		m.seesClient(t, m.OutsideHost(), network, to, outsideAddr(to.Addr().Is6()))
	})
	m.slices(t, "web", webPorts, endpoint{pod: "one", node: "node-2"})
	each(uplinks, webNodePort, func(network string, to netip.AddrPort) {
		eventually(t, func() error {
			if a, err := requestBriefly(t.Context(), m.OutsideHost(), network, to); err == nil {
				return fmt.Errorf("%s over %s: a node without a backend answers: %+v", to, network, a)
			}
			return nil
		})
		m.getsNoReply(t, m.OutsideHost(), network, to)
		m.reaches(t, client, network, to, "one")
	})
}

// The network routes addresses of a load balancer, and external ones, to the node.
var (
	balancerAddrs = []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:113::10")}
	externalAddrs = []netip.Addr{netip.MustParseAddr("203.0.113.20"), netip.MustParseAddr("2001:db8:113::20")}
)

func (m *serviceFixture) routePublic(t *testing.T) {
	t.Helper()
	if err := m.RouteFromOutside("203.0.113.0/24", "2001:db8:113::/64"); err != nil {
		t.Fatal(err)
	}
}

// Clients outside and pods reach a service under the addresses of its status and its external ones.
func (m *serviceFixture) loadBalancerAndExternalIPs(t *testing.T, packets bool) {
	client := m.pod(t, "client")
	m.balancer(t, "externalIPs: [203.0.113.20, \"2001:db8:113::20\"]")
	m.backends(t, "one", "two")
	each(slices.Concat(balancerAddrs, externalAddrs), 80, func(network string, to netip.AddrPort) {
		m.served(t, to.String()+"/"+strings.ToUpper(network), 2)
		m.reaches(t, m.OutsideHost(), network, to, "one", "two")
		m.seesClient(t, m.OutsideHost(), network, to, outsideAddr(to.Addr().Is6()))
		m.reaches(t, client, network, to, "one", "two")
		m.reaches(t, m.pods["one"], network, to, "one", "two")
		if !packets {
			m.reaches(t, m.Host(), network, to, "one", "two")
		}
	})
	m.balancer(t, fmt.Sprintf("externalIPs: [%q, %q]", uplinks[0], uplinks[1])) // addresses of the node itself
	each(uplinks, 80, func(network string, to netip.AddrPort) {
		m.served(t, to.String()+"/"+strings.ToUpper(network), 2)
		m.reaches(t, m.OutsideHost(), network, to, "one", "two")
		m.reaches(t, client, network, to, "one", "two")
	})
}

// balancer makes "web" a service of the type LoadBalancer with its addresses, and with additional fields of its spec and annotations.
func (m *serviceFixture) balancer(t *testing.T, spec string, annotations ...string) {
	t.Helper()
	m.write(t, "web-service.yaml", "{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: web, annotations: {"+strings.Join(annotations, ", ")+"}}, spec: {"+webSpec+
		", type: LoadBalancer, "+spec+"}, status: {loadBalancer: {ingress: [{ip: 203.0.113.10}, {ip: \"2001:db8:113::10\"}]}}}\n")
}

// Only clients outside with an address in the source ranges get replies, or only clients with an address in no denied range.
func (m *serviceFixture) sourceRanges(t *testing.T, _ bool) {
	try := func(ranges string, answered bool, annotations ...string) {
		t.Helper()
		m.balancer(t, "loadBalancerSourceRanges: "+ranges, annotations...)
		m.backends(t, "one")
		each(balancerAddrs, 80, func(network string, to netip.AddrPort) {
			m.served(t, to.String()+"/"+strings.ToUpper(network), 1)
			if answered {
				m.reaches(t, m.OutsideHost(), network, to, "one")
				return
			}
			eventually(t, func() error {
				if a, err := requestBriefly(t.Context(), m.OutsideHost(), network, to); err == nil {
					return fmt.Errorf("%s over %s answers a stranger: %+v", to, network, a)
				}
				return nil
			})
			m.getsNoReply(t, m.OutsideHost(), network, to)
		})
	}
	try("[192.0.2.1/32, \"2001:db8:2::/64\"]", true)
	try("[192.0.2.2/31, \"2001:db8:3::/64\"]", false)
	const deny = "service.cilium.io/src-ranges-policy: deny"
	try("[192.0.2.2/31, \"2001:db8:3::/64\"]", true, deny)
	try("[192.0.2.1/32, \"2001:db8:2::/64\"]", false, deny)
}

// A pod's host port is served on the node's addresses, and afterwards for the next pod of the same name.
func (m *serviceFixture) hostPortFollowsThePod(t *testing.T, _ bool) {
	client := m.pod(t, "client")
	for _, uid := range []string{"first", "second"} {
		pod := m.pod(t, "one", 8080)
		m.write(t, "one-pod.yaml", fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: one, uid: %s}, "+
			"spec: {nodeName: node-1, containers: [{name: c, ports: [{containerPort: 8080, hostPort: 8888, protocol: TCP}, "+
			"{containerPort: 8080, hostPort: 8888, protocol: UDP}]}]}, "+
			"status: {phase: Running, podIP: %s, podIPs: [{ip: %s}, {ip: %q}], conditions: [{type: Ready, status: \"True\"}]}}\n",
			uid, pod.Addr(false), pod.Addr(false), pod.Addr(true)))
		each(uplinks, 8888, func(network string, to netip.AddrPort) {
			eventually(t, func() error { _, err := requestBriefly(t.Context(), m.OutsideHost(), network, to); return err })
			m.reaches(t, m.OutsideHost(), network, to, "one")
			m.seesClient(t, m.OutsideHost(), network, to, outsideAddr(to.Addr().Is6()))
			m.reaches(t, client, network, to, "one")
			m.reaches(t, m.Host(), network, to, "one")
		})
		if err := errors.Join(pod.Detach(t.Context()), os.Remove(filepath.Join(m.ManifestsDir(), "one-pod.yaml"))); err != nil {
			t.Fatal(err)
		}
		each(uplinks, 8888, func(network string, to netip.AddrPort) {
			eventually(t, func() error {
				if a, err := requestBriefly(t.Context(), m.OutsideHost(), network, to); err == nil {
					return fmt.Errorf("%s over %s: a pod that is gone answers: %+v", to, network, a)
				}
				return nil
			})
		})
	}
}

// A backend on another node is reached under the node's address, and its replies reach the client: outside, on the node, and in a pod.
func (m *serviceFixture) backendOnOtherNode(t *testing.T, packets bool) {
	client := m.pod(t, "client")
	serveName(t, m.OutsideHost(), "elsewhere", 8080)
	m.service(t, "web", webRest+fmt.Sprintf(nodePorts, "NodePort", "Cluster"))
	m.slicesOutside(t, "web", webPorts)
	for i, addr := range webAddrs {
		m.ready(t, netip.AddrPortFrom(addr, 80), 1)
		m.ready(t, netip.AddrPortFrom(uplinks[i], webNodePort), 1)
	}
	each(webAddrs, 80, func(network string, to netip.AddrPort) {
		m.seesClient(t, client, network, to, uplinkAddr(to.Addr().Is6()))
		if !packets {
			m.seesClient(t, m.Host(), network, to, uplinkAddr(to.Addr().Is6()))
		}
	})
	each(uplinks, webNodePort, func(network string, to netip.AddrPort) {
		m.seesClient(t, m.OutsideHost(), network, to, uplinkAddr(to.Addr().Is6()))
		m.seesClient(t, client, network, to, uplinkAddr(to.Addr().Is6()))
	})
}
