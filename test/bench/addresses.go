package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

const nodePort = 30080

// addresses measures the time until a NodePort is reachable from outside at an address that the uplink gets.
func (b *bench) addresses(ctx context.Context) error {
	node, err := b.startNode(ctx, nodekit.Options{AgentArgs: []string{"--nodeport-addresses=0.0.0.0/0,::/0"}})
	if err != nil {
		return err
	}
	defer node.Close()
	backend, err := node.AddPod(ctx, "backend")
	if err != nil {
		return err
	}
	if err := node.WriteManifest("nodeport.yaml", nodePortManifest(backend)); err != nil {
		return err
	}
	for _, f := range []struct {
		name        string
		ipv6        bool
		old, second netip.Prefix
	}{
		{"IPv4", false, nodekit.UplinkIPv4, netip.MustParsePrefix("192.0.2.77/32")},
		{"IPv6", true, nodekit.UplinkIPv6, netip.MustParsePrefix("2001:db8:2::77/128")},
	} {
		conn, err := responder(backend, netip.AddrPortFrom(backend.Addr(f.ipv6), shopBackend))
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := awaitServed(ctx, node, f.old.Addr()); err != nil {
			return err
		}
		took, err := b.newAddress(ctx, node, f.second)
		if err != nil {
			return fmt.Errorf("%s: %w", f.second, err)
		}
		b.promised("a NodePort at a new "+f.name+" address of the node", took, addressBudget)
	}
	return nil
}

// awaitServed waits until the NodePort is reachable at an initial address of the node.
func awaitServed(ctx context.Context, node *nodekit.Node, addr netip.Addr) error {
	requests := startRequests(node.OutsideHost(), netip.AddrPortFrom(addr, nodePort))
	_, err := requests.replied(ctx, time.Now())
	return errors.Join(err, requests.stop())
}

// newAddress adds an address to the uplink and removes it, repeatedly.
func (b *bench) newAddress(ctx context.Context, node *nodekit.Node, addr netip.Prefix) (took []time.Duration, err error) {
	if err := knowNeighbour(node, addr.Addr()); err != nil {
		return nil, err
	}
	requests := startRequests(node.OutsideHost(), netip.AddrPortFrom(addr.Addr(), nodePort))
	defer requests.stop()
	for range b.atMost(10) {
		if err := requests.silent(ctx); err != nil {
			return nil, fmt.Errorf("before the node has the address: %w", err)
		}
		began := time.Now()
		if err := onUplink(node, addr, netlink.AddrAdd); err != nil {
			return nil, err
		}
		one, err := requests.replied(ctx, began)
		if err != nil {
			return nil, err
		}
		took = append(took, one)
		if err := onUplink(node, addr, netlink.AddrDel); err != nil {
			return nil, err
		}
	}
	return took, requests.stop()
}

// onUplink adds an address to the uplink or deletes it.
func onUplink(node *nodekit.Node, addr netip.Prefix, change func(netlink.Link, *netlink.Addr) error) error {
	return node.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		parsed, err := netlink.ParseAddr(addr.String())
		if err != nil {
			return err
		}
		if addr.Addr().Is6() {
			parsed.Flags = unix.IFA_F_NODAD // the address is usable immediately
		}
		return change(link, parsed)
	})
}

// knowNeighbour adds a permanent neighbour entry on the host outside, so that neighbour discovery is not measured.
func knowNeighbour(node *nodekit.Node, addr netip.Addr) error {
	var mac net.HardwareAddr
	if err := node.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			mac = link.Attrs().HardwareAddr
		}
		return err
	}); err != nil {
		return err
	}
	return node.Outside(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: addr.AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT})
	})
}

// nodePortManifest returns a dual-stack Service with a NodePort and one backend.
func nodePortManifest(backend *nodekit.Pod) string {
	var text strings.Builder
	fmt.Fprintf(&text, "{apiVersion: v1, kind: Service, metadata: {namespace: default, name: web}, spec: {type: NodePort, clusterIP: %q, "+
		"clusterIPs: [%q, %q], ipFamilies: [IPv4, IPv6], ports: [{port: %d, targetPort: %d, protocol: UDP, nodePort: %d}]}}\n",
		shopAddrs[false], shopAddrs[false], shopAddrs[true], shopPort, shopBackend, nodePort)
	for family, ipv6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		fmt.Fprintf(&text, "---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: default, name: web-%s, "+
			"labels: {kubernetes.io/service-name: web}}, addressType: %s, ports: [{port: %d, protocol: UDP}], endpoints: [{addresses: [%q], "+
			"nodeName: node-1}]}\n", strings.ToLower(family), family, shopBackend, backend.Addr(ipv6))
	}
	return text.String()
}
