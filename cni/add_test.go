package cni

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/podlink"
)

func TestPrivilegedAdd_DualStack(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	c := add("c1", p)
	c.args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_UID=u-1;K8S_POD_INFRA_CONTAINER_ID=c1"
	var result types100.Result
	if err := json.Unmarshal(n.must(c), &result); err != nil {
		t.Fatal(err)
	}
	if len(result.Interfaces) != 2 || len(result.IPs) != 2 || len(result.Routes) != 4 {
		t.Fatalf("result: %+v", result)
	}
	host, eth0 := result.Interfaces[0], result.Interfaces[1]
	if host.Name != hostName("c1", 0) || host.Sandbox != "" || eth0.Name != "eth0" || eth0.Sandbox != p.path || eth0.Mtu != 1450 {
		t.Errorf("interfaces: %+v %+v", host, eth0)
	}
	for i, want := range []string{"fd09::11/128 fd09::1", "10.9.0.11/32 10.9.0.1"} {
		ip := result.IPs[i]
		if got := fmt.Sprintf("%s %s", &ip.Address, ip.Gateway); got != want || *ip.Interface != 1 {
			t.Errorf("ips[%d]: %s on %d, want %s on 1", i, got, *ip.Interface, want)
		}
	}
	n.net.Do(func() {
		link, err := netlink.LinkByName(host.Name)
		if err != nil {
			t.Error(err)
			return
		}
		if a := link.Attrs(); a.Group != podlink.Group || a.HardwareAddr.String() != host.Mac || a.MTU != 1450 {
			t.Errorf("host end: %+v", a)
		}
	})
	req := n.agent.endpoints["c1:eth0"]
	if req.K8SPodName != "web" || req.K8SNamespace != "default" || req.K8SUid != "u-1" || req.Addressing.Ipv4ExpirationUUID != "uuid4" ||
		req.Addressing.Ipv6ExpirationUUID != "uuid6" || req.InterfaceName != host.Name || req.HostMAC != host.Mac ||
		req.MAC != eth0.Mac || req.InterfaceIndex == 0 || req.Properties["netns-path"] != p.path || req.NetnsCookie == "0" {
		t.Errorf("endpoint: %+v", req)
	}
	if owner := n.agent.addresses["10.9.0.11"]; owner != "default/web" {
		t.Errorf("owner of the address: %q", owner)
	}
	p.checkPod(t, host.Mac)
}

func TestPrivilegedAdd_OneFamily(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		ipv4, ipv6 bool
		want       string
	}{{"IPv4", true, false, "10.9.0.11/32"}, {"IPv6", false, true, "fd09::11/128"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n, p := newNode(t), newPod(t)
			n.agent.set(func() { n.agent.ipv4, n.agent.ipv6 = c.ipv4, c.ipv6 })
			// A runtime may disable IPv6 in the namespace; the plugin enables it only for a pod with an IPv6 address.
			p.Do(func() {
				if err := os.WriteFile(disableIPv6, []byte("1"), 0); err != nil {
					t.Error(err)
				}
			})
			out := n.must(add("c1", p))
			var result types100.Result
			if err := json.Unmarshal(out, &result); err != nil {
				t.Fatal(err)
			}
			if len(result.IPs) != 1 || result.IPs[0].Address.String() != c.want || len(result.Routes) != 2 {
				t.Errorf("result: %s", out)
			}
			p.Do(func() {
				off, err := os.ReadFile(disableIPv6)
				if err != nil || (strings.TrimSpace(string(off)) == "0") != c.ipv6 {
					t.Errorf("disable_ipv6 is %q, %v", off, err)
				}
			})
			n.must(check("c1", p, out))
			n.must(del("c1", p))
		})
	}
}

// checkPod checks addresses, routes and neighbours of both families.
func (p pod) checkPod(t *testing.T, hostMAC string) {
	t.Helper()
	p.Do(func() {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			t.Error(err)
			return
		}
		if link.Attrs().Flags&1 == 0 {
			t.Error("eth0 is down")
		}
		addrs, _ := netlink.AddrList(link, netlink.FAMILY_ALL)
		routes, _ := netlink.RouteList(link, netlink.FAMILY_ALL)
		neighbours, _ := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
		var have []string
		for _, a := range addrs {
			have = append(have, a.IPNet.String())
		}
		for _, r := range routes {
			have = append(have, fmt.Sprintf("%v via %v mtu %d", r.Dst, r.Gw, r.MTU))
		}
		for _, e := range neighbours {
			have = append(have, fmt.Sprintf("%s %s %d", e.IP, e.HardwareAddr, e.State))
		}
		for _, want := range []string{"10.9.0.11/32", "fd09::11/128", "10.9.0.1/32 via <nil> mtu 0", "0.0.0.0/0 via 10.9.0.1 mtu 1400",
			"fd09::1/128 via <nil> mtu 0", "::/0 via fd09::1 mtu 1400", "10.9.0.1 " + hostMAC + " 128", "fd09::1 " + hostMAC + " 128"} {
			if !slices.Contains(have, want) {
				t.Errorf("the pod lacks %q; it has %q", want, have)
			}
		}
	})
}
