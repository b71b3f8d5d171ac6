package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/test/nodekit"
)

// A runtime runs all commands of a pod's life in every CNI version, with the real agent.
func TestPrivilegedPlugin_EveryVersion(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{AgentArgs: []string{"--routing-mode=native", "--mtu", "1400"}})
	before := settled(t, node)
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			pod := newPod(t, node, "web-"+strings.ReplaceAll(version, ".", "-"))
			err := node.Do(func() error {
				cni, list, err := node.CNI(version)
				if err != nil {
					return err
				}
				return wholeLife(t, cni, list, pod, version)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	eventuallySame(t, node, before)
}

func wholeLife(t *testing.T, cni *libcni.CNIConfig, list *libcni.NetworkConfigList, pod *nodekit.Pod, version string) error {
	ctx, rt := context.Background(), pod.Runtime()
	raw, err := cni.AddNetworkList(ctx, list, rt)
	if err != nil {
		return fmt.Errorf("ADD: %w", err)
	}
	if raw.Version() != version {
		t.Errorf("ADD answered in version %s", raw.Version())
	}
	result, err := types100.NewResultFromResult(raw)
	if err != nil {
		return err
	}
	requireResult(t, result, pod, 1400, version)
	requirePodMTU(t, pod, 1400, 1400)
	if version != "0.3.1" {
		if err := cni.CheckNetworkList(ctx, list, rt); err != nil {
			t.Errorf("CHECK: %v", err)
		}
	}
	if version == "1.1.0" {
		keep := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: rt.ContainerID, IfName: rt.IfName}}}
		if err := errors.Join(cni.GetStatusNetworkList(ctx, list), cni.GCNetworkList(ctx, list, keep),
			cni.CheckNetworkList(ctx, list, rt)); err != nil {
			t.Errorf("STATUS, GC, CHECK: %v", err)
		}
	}
	for range 2 { // the second DEL is for a removed pod
		if err := cni.DelNetworkList(ctx, list, rt); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	if version != "0.3.1" {
		if err := cni.CheckNetworkList(ctx, list, rt); err == nil {
			t.Error("CHECK succeeds after DEL")
		}
	}
	return nil
}

// requireResult requires the interfaces of the host and the pod, and an address with its gateway and two routes for each family.
func requireResult(t *testing.T, r *types100.Result, pod *nodekit.Pod, mtu int, version string) {
	t.Helper()
	if len(r.Interfaces) != 2 || len(r.IPs) != 2 || len(r.Routes) != 4 {
		t.Fatalf("result: %+v", r)
	}
	host, end := r.Interfaces[0], r.Interfaces[1]
	if !podlink.IsHostName(host.Name) || host.Sandbox != "" || end.Name != "eth0" || end.Sandbox != pod.NetnsPath || host.Mac == end.Mac {
		t.Errorf("interfaces: %+v, %+v", host, end)
	}
	var want []string
	for _, ip := range r.IPs {
		ones, bits := ip.Address.Mask.Size()
		if ip.Interface == nil || *ip.Interface != 1 || ones != bits || ip.Gateway == nil {
			t.Errorf("address: %+v", ip)
			continue
		}
		all := "0.0.0.0/0"
		if bits == 128 {
			all = "::/0"
		}
		want = append(want, fmt.Sprintf("%s/%d via <nil>", ip.Gateway, bits), fmt.Sprintf("%s via %s", all, ip.Gateway))
	}
	var got []string
	for _, route := range r.Routes {
		got = append(got, fmt.Sprintf("%s via %s", &route.Dst, route.GW))
		if version == "1.1.0" && route.GW != nil && route.MTU != mtu {
			t.Errorf("route %s has MTU %d", &route.Dst, route.MTU)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("routes %q, want %q", got, want)
	}
}

// requirePodMTU requires an MTU of the link of a pod, and an MTU of its default routes.
func requirePodMTU(t *testing.T, pod *nodekit.Pod, link, routes int) {
	t.Helper()
	if err := podMTU(pod, link, routes); err != nil {
		t.Error(err)
	}
}

// podMTU returns an error unless the link in a pod and both its default routes have the given MTUs.
func podMTU(pod *nodekit.Pod, mtu, routeMTU int) error {
	return pod.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		routes, err := netlink.RouteList(link, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		if have := link.Attrs().MTU; have != mtu {
			return fmt.Errorf("pod %s: eth0 has MTU %d, want %d", pod.Name, have, mtu)
		}
		defaults := 0
		for _, r := range routes {
			if ones, _ := r.Dst.Mask.Size(); ones != 0 {
				continue
			}
			defaults++
			if r.MTU != routeMTU {
				return fmt.Errorf("pod %s: route %s has MTU %d, want %d", pod.Name, r, r.MTU, routeMTU)
			}
		}
		if defaults != 2 {
			return fmt.Errorf("pod %s: %d default routes", pod.Name, defaults)
		}
		return nil
	})
}

func TestPrivilegedMTU_DeviceAndRoutes(t *testing.T) {
	t.Parallel()
	for _, mtu := range []int{1280, 9000, 65520} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			t.Parallel()
			node := startNode(t, nodekit.Options{AgentArgs: []string{"--routing-mode=native", "--mtu", fmt.Sprint(mtu)}})
			a, b := addPod(t, node, "a"), addPod(t, node, "b")
			requirePodMTU(t, a, mtu, mtu)
			for _, family := range families {
				if err := errors.Join(nodekit.Ping(a, b.Addr(family.ipv6), mtu-48), nodekit.TCP(a, b, b.Addr(family.ipv6), 1<<20)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// CHECK detects each kind of damage on the real node.
func TestPrivilegedCheck_FindsEachKindOfDamage(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	inPod := func(change func(netlink.Link) error) func(*nodekit.Pod) error {
		return func(p *nodekit.Pod) error {
			return p.Do(func() error {
				link, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				return change(link)
			})
		}
	}
	atHost := func(change func(netlink.Link) error) func(*nodekit.Pod) error {
		return func(p *nodekit.Pod) error {
			return node.Do(func() error {
				link, err := netlink.LinkByName(p.Result.Interfaces[0].Name)
				if err != nil {
					return err
				}
				return change(link)
			})
		}
	}
	otherMAC := net.HardwareAddr{2, 1, 2, 3, 4, 5}
	for _, c := range []struct {
		name   string
		damage func(*nodekit.Pod) error
		word   string
	}{
		{"pod's end down", inPod(netlink.LinkSetDown), "is down"},
		{"pod's end renamed", inPod(func(l netlink.Link) error {
			return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, "eth7"))
		}), "eth0"},
		{"pod's MAC changed", inPod(func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, otherMAC) }), "has address"},
		{"pod's MTU changed", inPod(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) }), "MTU"},
		{"pod's IPv4 address missing", inPod(func(l netlink.Link) error { return deleteAddresses(l, netlink.FAMILY_V4) }), "address 10."},
		{"pod's IPv6 address missing", inPod(func(l netlink.Link) error { return deleteAddresses(l, netlink.FAMILY_V6) }), "address fd00:"},
		{"default route missing", inPod(func(l netlink.Link) error { return deleteDefault(l, netlink.FAMILY_V4) }), "route 0.0.0.0/0"},
		{"IPv6 default route missing", inPod(func(l netlink.Link) error { return deleteDefault(l, netlink.FAMILY_V6) }), "route ::/0"},
		{"neighbour missing", inPod(deleteNeighbours), "neighbour"},
		{"link missing", inPod(netlink.LinkDel), ""},
		{"host end down", atHost(netlink.LinkSetDown), "is down"},
		{"host end's MAC changed", atHost(func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, otherMAC) }), "has address"},
		{"host end's MTU changed", atHost(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) }), "MTU"},
		{"host end in another group", atHost(func(l netlink.Link) error { return netlink.LinkSetGroup(l, 7) }), "host end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := addPod(t, node, "victim")
			if err := pod.Check(t.Context()); err != nil {
				t.Fatalf("before the damage: %v", err)
			}
			// The agent repairs the host's end, sometimes before CHECK reads it: then the test damages it again.
			var found error
			eventually(t, func() error {
				if err := c.damage(pod); err != nil {
					return err
				}
				if found = pod.Check(t.Context()); found == nil {
					return errors.New("CHECK finds no damage")
				}
				return nil
			})
			requireCNIError(t, found, 101, c.word)
			if err := pod.Detach(t.Context()); err != nil {
				t.Errorf("DEL of what is damaged: %v", err)
			}
		})
	}
	t.Run("endpoint deleted", func(t *testing.T) {
		pod := addPod(t, node, "forgotten")
		if _, err := node.Waggle(t.Context(), "endpoint", "delete", "pod-name:default/forgotten"); err != nil {
			t.Fatal(err)
		}
		requireCNIError(t, pod.Check(t.Context()), 101, "no endpoint")
	})
}

func deleteAddresses(l netlink.Link, family int) error {
	addrs, err := netlink.AddrList(l, family)
	for _, a := range addrs {
		if a.Scope != int(netlink.SCOPE_LINK) {
			err = errors.Join(err, netlink.AddrDel(l, &a))
		}
	}
	return err
}

func deleteDefault(l netlink.Link, family int) error {
	routes, err := netlink.RouteList(l, family)
	for _, r := range routes {
		if ones, _ := r.Dst.Mask.Size(); ones == 0 {
			err = errors.Join(err, netlink.RouteDel(&r))
		}
	}
	return err
}

func deleteNeighbours(l netlink.Link) error {
	all, err := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_ALL)
	for _, n := range all {
		if n.State&netlink.NUD_PERMANENT != 0 {
			err = errors.Join(err, netlink.NeighDel(&n))
		}
	}
	return err
}

func newPod(t *testing.T, node *nodekit.Node, name string) *nodekit.Pod {
	t.Helper()
	pod, err := node.NewPod(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pod.Close() })
	return pod
}
