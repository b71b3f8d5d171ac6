package node_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

// Additional addresses of the uplink.
var (
	secondAddrs    = []netip.Addr{netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("2001:db8:2::77")}
	secondPrefixes = []netip.Prefix{netip.PrefixFrom(secondAddrs[0], 24), netip.PrefixFrom(secondAddrs[1], 64)}
)

// Node ports are served only at the addresses that the flag selects; a host port at the address in the pod's spec, or without one at the addresses of node
// ports.
func TestPrivilegedService_AddressesByFlagAndByPod(t *testing.T) {
	t.Parallel()
	m := newStoppedServiceFixture(t, "--bpf-lb-sock=false", "--nodeport-addresses=192.0.2.77/32,2001:db8:2::77/128")
	for _, p := range secondPrefixes {
		if err := m.Do(func() error { return addAddr("eth0", p) }); err != nil {
			t.Fatal(err)
		}
	}
	m.start(t)
	clients := []nodekit.NetNS{m.OutsideHost(), m.pod(t, "client")}
	one := m.pod(t, "one", 8080)
	m.service(t, "web", webRest+fmt.Sprintf(nodePorts, "NodePort", "Cluster"))
	m.slices(t, "web", webPorts, endpoint{pod: "one"})
	var ports []string
	for _, protocol := range []string{"TCP", "UDP"} {
		ports = append(ports, fmt.Sprintf("{containerPort: 8080, hostPort: 8888, protocol: %s}", protocol))
		for _, addr := range uplinks {
			ports = append(ports, fmt.Sprintf("{containerPort: 8080, hostPort: 8889, hostIP: %q, protocol: %s}", addr, protocol))
		}
	}
	m.write(t, "one-pod.yaml", fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: one, uid: one}, "+
		"spec: {nodeName: node-1, containers: [{name: c, ports: [%s]}]}, status: {phase: Running, podIP: %s, podIPs: [{ip: %s}, {ip: %q}], "+
		"conditions: [{type: Ready, status: \"True\"}]}}\n", strings.Join(ports, ", "), one.Addr(false), one.Addr(false), one.Addr(true)))
	for port, addrs := range map[uint16][]netip.Addr{webNodePort: secondAddrs, 8888: secondAddrs, 8889: uplinks} {
		for _, addr := range addrs {
			m.ready(t, netip.AddrPortFrom(addr, port), 1)
		}
		m.onlyAt(t, clients, port, addrs)
	}
}

// onlyAt requires a port to be served by "one" at some addresses of the uplink, and the kernel to reject it at the others.
func (m *serviceFixture) onlyAt(t *testing.T, clients []nodekit.NetNS, port uint16, addrs []netip.Addr) {
	t.Helper()
	for _, all := range [][]netip.Addr{uplinks, secondAddrs} {
		each(all, port, func(network string, to netip.AddrPort) {
			for _, client := range clients {
				if all[0] == addrs[0] {
					m.reaches(t, client, network, to, "one")
				} else {
					m.rejected(t, client, network, to)
				}
			}
		})
	}
}

// Node ports in the range of the flag are served, including its ends, and other node ports are not.
func TestPrivilegedService_NodePortRange(t *testing.T) {
	t.Parallel()
	m := newServiceFixture(t, "--bpf-lb-sock=false", "--node-port-range=20000,20010")
	clients := []nodekit.NetNS{m.OutsideHost(), m.pod(t, "client")}
	m.pod(t, "one", 8080)
	var ports, targets []string
	all := map[uint16]bool{19999: false, 20000: true, 20010: true, 20011: false, webNodePort: false}
	for port := range all {
		for _, protocol := range []string{"TCP", "UDP"} {
			name := fmt.Sprintf("%s-%d", strings.ToLower(protocol), port)
			ports = append(ports, fmt.Sprintf("{name: %s, port: %d, targetPort: 8080, protocol: %s, nodePort: %d}", name, port, protocol, port))
			targets = append(targets, fmt.Sprintf("{name: %s, port: 8080, protocol: %s}", name, protocol))
		}
	}
	m.service(t, "web", webRest+", type: NodePort, ports: ["+strings.Join(ports, ", ")+"]")
	m.slices(t, "web", "["+strings.Join(targets, ", ")+"]", endpoint{pod: "one"})
	for port, inside := range all {
		for _, addr := range webAddrs {
			m.ready(t, netip.AddrPortFrom(addr, port), 1) // under the ClusterIP in any case
		}
		each(uplinks, port, func(network string, to netip.AddrPort) {
			if inside {
				m.served(t, to.String()+"/"+strings.ToUpper(network), 1)
			}
			for _, client := range clients {
				if inside {
					m.reaches(t, client, network, to, "one")
				} else {
					m.rejected(t, client, network, to)
				}
			}
		})
	}
}

// Pods keep their addresses towards the prefixes of the flag, and get the node's address towards others.
func TestPrivilegedMasquerade_Excluded(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			m := newServiceFixture(t, append([]string{"--masquerade-exclude-cidrs=192.0.2.77/32,2001:db8:2::77/128"}, mode.args...)...)
			routeBack(t, m.Node)
			pod := m.pod(t, "one")
			for _, p := range secondPrefixes {
				if err := m.Outside(func() error { return addAddr("eth0", p) }); err != nil {
					t.Fatal(err)
				}
			}
			serveName(t, m.OutsideHost(), "outside", 9000)
			for i, f := range families {
				for _, network := range networks {
					m.seesClient(t, pod, network, netip.AddrPortFrom(secondAddrs[i], 9000), pod.Addr(f.ipv6))
					m.seesClient(t, pod, network, netip.AddrPortFrom(outsideAddr(f.ipv6), 9000), uplinkAddr(f.ipv6))
				}
			}
		})
	}
}
