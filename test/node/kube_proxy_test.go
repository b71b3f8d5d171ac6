package node_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

// kubeProxyRules returns the rules that kube-proxy writes in its mode iptables for a service with one backend, a cluster IP and a node port.
func kubeProxyRules(clusterIP, backend netip.Addr, pods string) string {
	var b strings.Builder
	b.WriteString("*filter\n:KUBE-FORWARD - [0:0]\n-A FORWARD -j KUBE-FORWARD\n-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n" +
		"-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\nCOMMIT\n" +
		"*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n:KUBE-POSTROUTING - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n" +
		"-A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n-A POSTROUTING -j KUBE-POSTROUTING\n" +
		"-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n" +
		"-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000\n-A KUBE-POSTROUTING -j MASQUERADE --random-fully\n")
	for _, protocol := range []string{"tcp", "udp"} {
		upper := strings.ToUpper(protocol)
		rules := strings.NewReplacer("{svc}", "KUBE-SVC-"+upper, "{ext}", "KUBE-EXT-"+upper, "{sep}", "KUBE-SEP-"+upper, "{proto}", protocol,
			"{clusterIP}", clusterIP.String(), "{pods}", pods, "{backend}", backend.String(), "{to}", netip.AddrPortFrom(backend, farPort).String(),
			"{nodePort}", fmt.Sprint(farNodePort), "{port}", fmt.Sprint(farService))
		_, _ = rules.WriteString(&b, ":{svc} - [0:0]\n:{ext} - [0:0]\n:{sep} - [0:0]\n"+
			"-A KUBE-SERVICES -d {clusterIP} -p {proto} -m {proto} --dport {port} -j {svc}\n"+
			"-A KUBE-NODEPORTS -p {proto} -m {proto} --dport {nodePort} -j {ext}\n"+
			"-A {ext} -j KUBE-MARK-MASQ\n-A {ext} -j {svc}\n"+
			"-A {svc} ! -s {pods} -d {clusterIP} -p {proto} -m {proto} --dport {port} -j KUBE-MARK-MASQ\n-A {svc} -j {sep}\n"+
			"-A {sep} -s {backend} -j KUBE-MARK-MASQ\n-A {sep} -p {proto} -m {proto} -j DNAT --to-destination {to}\n")
	}
	b.WriteString("-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\nCOMMIT\n")
	return b.String()
}

// kube-proxy serves a service whose only backend is a pod of another node: pods and processes of both nodes reach it at its cluster IP, and a host outside at
// its node port on either node.
func TestPrivilegedKubeProxy_ServicesBetweenNodes(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"tunnel": {"--routing-mode=tunnel"}, "native": {"--routing-mode=native", "--auto-direct-node-routes"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, 2, append(args, "--kube-proxy-replacement=false")...)
			one, two := c.Nodes[0], c.Nodes[1]
			for _, n := range c.Nodes { // the kernel looks up the route to a cluster IP before the address is translated
				if err := n.Do(func() error { return defaultRouteIPv6("eth0") }); err != nil {
					t.Fatal(err)
				}
			}
			client, neighbour, server := addPod(t, one, "client"), addPod(t, two, "neighbour"), addPod(t, two, "server")
			for _, n := range c.Nodes {
				eventually(t, func() error { return routesTo(t, n, 2) })
			}
			for _, family := range families {
				clusterIP, pods, program := netip.MustParseAddr("10.96.0.80"), "10.244.0.0/16", rules4
				if family.ipv6 {
					clusterIP, pods, program = netip.MustParseAddr("fd00:96::80"), "fd00:10:244::/48", rules6
				}
				backend := server.Addr(family.ipv6)
				for _, n := range c.Nodes {
					if err := n.Do(func() error {
						cmd := exec.Command(program)
						cmd.Stdin = strings.NewReader(kubeProxyRules(clusterIP, backend, pods))
						out, err := cmd.CombinedOutput()
						if err != nil {
							err = fmt.Errorf("%s: %w\n%s", program, err, out)
						}
						return err
					}); err != nil {
						t.Fatal(err)
					}
				}
				at := netip.AddrPortFrom(backend, farPort)
				for name, path := range map[string]struct {
					from nodekit.NetNS
					to   netip.AddrPort
				}{
					"a pod of the other node":   {client, netip.AddrPortFrom(clusterIP, farService)},
					"a pod of the same node":    {neighbour, netip.AddrPortFrom(clusterIP, farService)},
					"the backend itself":        {server, netip.AddrPortFrom(clusterIP, farService)},
					"the other node":            {one.Host(), netip.AddrPortFrom(clusterIP, farService)},
					"the same node":             {two.Host(), netip.AddrPortFrom(clusterIP, farService)},
					"outside by the other node": {one.OutsideHost(), netip.AddrPortFrom(one.UplinkAddr(family.ipv6), farNodePort)},
					"outside by the same node":  {one.OutsideHost(), netip.AddrPortFrom(two.UplinkAddr(family.ipv6), farNodePort)},
				} {
					if err := nodekit.TCPThrough(path.from, path.to, server, at, 1<<16); err != nil {
						t.Errorf("%s, TCP from %s to %s: %v", family.name, name, path.to, err)
					}
					if err := nodekit.UDPThrough(path.from, path.to, server, at, 100); err != nil {
						t.Errorf("%s, UDP from %s to %s: %v", family.name, name, path.to, err)
					}
				}
			}
		})
	}
}
