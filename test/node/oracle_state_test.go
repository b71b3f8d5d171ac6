package node_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/test/nodekit"
)

// noNode is the meaning of node id 0: this node, or none.
const noNode = "no other node"

// settled waits until the kernel of each present node holds the state that a newly started agent would write: everything about present nodes and their pods,
// and about removed ones only the claims that the table nodes retains.
func (o *oracle) settled(t *testing.T) {
	t.Helper()
	for _, n := range o.here() {
		if n.blind {
			continue
		}
		eventually(t, func() error {
			has, err := o.kernelOf(t, n)
			if err != nil {
				return err
			}
			want, err := o.wantedOf(n)
			if err == nil {
				has, err = o.withoutRetained(t, n, has, want)
			}
			if err == nil {
				err = nodekit.Changes(want, has)
			}
			if err != nil {
				return fmt.Errorf("%s does not hold what is: %w", n.Name(), err)
			}
			return nil
		})
	}
}

// wantedOf returns the required state of a node according to the existing objects, one fact a line.
func (o *oracle) wantedOf(n *oracleNode) (facts []string, err error) {
	this := func(addrs ...netip.Addr) {
		for _, addr := range addrs {
			facts = append(facts, fmt.Sprintf("ipcache %s is %d on %s", addr, identity.Host, noNode))
		}
	}
	this(n.addrs[:]...)
	this(oracleBroadcast, oracleAnycast)
	for _, m := range o.here() {
		where := m.Name() // node of its own addresses: without a tunnel programs forward only to pods of that node
		if !o.mode.tunnel {
			where = noNode
		}
		var object ciliumv2.CiliumNode
		if !n.server.Get(kubeapi.CiliumNodes, "", m.Name(), &object) {
			return nil, fmt.Errorf("%s has no CiliumNode", m.Name())
		}
		health := []string{object.Spec.Health.IPv4, object.Spec.Health.IPv6}
		routers := 0
		for _, a := range object.Spec.Addresses {
			if a.Type != ciliumv2.CiliumInternalIP {
				continue
			}
			addr, err := netip.ParseAddr(a.IP)
			if err != nil {
				return nil, err
			}
			routers++
			if m == n {
				this(addr)
			} else {
				facts = append(facts, fmt.Sprintf("ipcache %s is %d on %s", addr, identity.RemoteNode, where))
			}
		}
		if routers != len(families) {
			return nil, fmt.Errorf("%s has %d routers", m.Name(), routers)
		}
		for i := range families {
			addr, err := netip.ParseAddr(health[i])
			if err != nil {
				return nil, fmt.Errorf("%s has no health address: %w", m.Name(), err)
			}
			if m == n {
				this(addr)
				if o.mode.tunnel {
					facts = append(facts, fmt.Sprintf("%s is an address of %s", n.addrs[i], noNode))
				}
				continue
			}
			by := ""
			if o.mode.gateways {
				by = " by way of " + m.addrs[i].String()
			}
			facts = append(facts, fmt.Sprintf("ipcache %s is %d on %s", addr, identity.Health, where),
				fmt.Sprintf("ipcache %s is %d on %s", m.addrs[i], identity.RemoteNode, where), fmt.Sprintf("routes lead to %s%s", m.ranges[i], by))
			if o.mode.tunnel {
				facts = append(facts, fmt.Sprintf("%s is an address of %s", m.addrs[i], m.Name()), fmt.Sprintf("range %s is of %s", m.ranges[i], m.Name()))
			}
		}
		if m != n && o.mode.tunnel {
			facts = append(facts, fmt.Sprintf("outer headers to %s lead from %s to %s", m.Name(), n.addrs[o.mode.underlay], m.addrs[o.mode.underlay]))
		}
		for _, pod := range m.pods() {
			number := n.published(pod.Name)
			if number == 0 {
				return nil, fmt.Errorf("pod %s has no CiliumEndpoint", pod.Name)
			}
			for _, addr := range addrsOf(pod) {
				where := m.Name()
				if m == n {
					where = noNode
				}
				facts = append(facts, fmt.Sprintf("ipcache %s is %d on %s", addr, number, where))
			}
		}
	}
	slices.Sort(facts)
	return facts, nil
}

// kernelOf returns a node's kernel state about nodes and pods.
func (o *oracle) kernelOf(t *testing.T, n *oracleNode) (facts []string, err error) {
	names := map[string]string{"0": noNode}
	ids, err := o.rows(t, n, "db", "show", "node-ids")
	if err != nil {
		return nil, err
	}
	for _, row := range ids {
		if f := strings.Fields(row); len(f) > 2 && f[len(f)-1] == "used" {
			names[f[0]] = f[1]
		}
	}
	name := func(id string) string {
		if name, found := names[id]; found {
			return name
		}
		return "node id " + id // not assigned to a node
	}
	entries, err := o.rows(t, n, "map", "get", "ipcache")
	if err != nil {
		return nil, err
	}
	for _, row := range entries {
		v := values(row)
		facts = append(facts, fmt.Sprintf("ipcache %s is %s on %s", v["addr"], v["identity"], name(v["node"])))
	}
	if o.mode.tunnel {
		addrs, err := o.rows(t, n, "map", "get", "node_addrs")
		if err != nil {
			return nil, err
		}
		for _, row := range addrs {
			v := values(row)
			facts = append(facts, fmt.Sprintf("%s is an address of %s", v["addr"], name(v["node"])))
		}
		slots, err := o.rows(t, n, "map", "get", "nodes")
		if err != nil {
			return nil, err
		}
		for _, row := range slots {
			v := values(row)
			facts = append(facts, fmt.Sprintf("outer headers to %s lead from %s to %s", name(strings.Fields(row)[0]), outerAddr(v["underlay_source"]), outerAddr(v["underlay"])))
		}
		prefixes, err := o.rows(t, n, "map", "get", "ipcache_prefixes")
		if err != nil {
			return nil, err
		}
		for _, row := range prefixes {
			v := values(row)
			if v["node"] == "0" {
				continue // the entity world
			}
			addr, err := netip.ParseAddr(v["addr"])
			if err != nil {
				return nil, err
			}
			const family = 32 // bits of the key before the address
			var bits int
			if _, err := fmt.Sscan(v["prefixlen"], &bits); err != nil {
				return nil, err
			}
			facts = append(facts, fmt.Sprintf("range %s is of %s", netip.PrefixFrom(addr, bits-family), name(v["node"])))
		}
	}
	routes, err := o.routesOf(n)
	facts = append(facts, routes...)
	slices.Sort(facts)
	return facts, err
}

// routesOf returns the pod ranges to which routes of the agent lead. Adjoining ranges may share a route. A range without a route is missing, and a routed
// prefix that is no pod range is a fact of its own.
func (o *oracle) routesOf(n *oracleNode) (facts []string, err error) {
	type led struct {
		netip.Prefix
		by string
	}
	var routed []led
	if err := n.Do(func() error {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: desiredroutes.Protocol}, netlink.RT_FILTER_PROTOCOL)
		for _, r := range routes {
			if r.Dst == nil {
				continue
			}
			addr, _ := netip.AddrFromSlice(r.Dst.IP)
			bits, _ := r.Dst.Mask.Size()
			by := ""
			if gateway, ok := netip.AddrFromSlice(r.Gw); ok && o.mode.gateways {
				by = " by way of " + gateway.Unmap().String()
			}
			routed = append(routed, led{netip.PrefixFrom(addr.Unmap(), bits), by})
		}
		return err
	}); err != nil {
		return nil, err
	}
	for _, route := range routed {
		if slices.Contains(n.ranges[:], route.Prefix) || route.IsSingleIP() {
			continue // its own range, and its own pods
		}
		size := map[bool]int{false: oracleBits4, true: oracleBits6}[route.Addr().Is6()]
		within := netip.PrefixFrom(route.Addr(), size).Masked()
		for ; size >= route.Bits() && route.Overlaps(within); within = nextRange(within) {
			facts = append(facts, fmt.Sprintf("routes lead to %s%s", within, route.by))
		}
		if size < route.Bits() {
			facts = append(facts, fmt.Sprintf("routes lead to %s%s", route.Prefix, route.by))
		}
	}
	slices.Sort(facts)
	return slices.Compact(facts), nil
}

// rows returns the lines of a command's output without the header.
func (o *oracle) rows(t *testing.T, n *oracleNode, command ...string) ([]string, error) {
	text, err := n.Waggle(t.Context(), command...)
	if err != nil {
		return nil, err
	}
	lines := slices.Collect(strings.Lines(text))
	if len(lines) == 0 {
		return nil, errors.New(strings.Join(command, " ") + " says nothing")
	}
	return lines[1:], nil
}

// values returns the fields name=value of a line.
func values(row string) map[string]string {
	all := map[string]string{}
	for _, field := range strings.Fields(row) {
		if name, value, found := strings.Cut(field, "="); found {
			all[name] = value
		}
	}
	return all
}

// outerAddr parses an address of a slot of the map nodes, which has an IPv4 address in its first four bytes.
func outerAddr(text string) string {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return text
	}
	bytes := addr.As16()
	if slices.Max(bytes[4:]) == 0 {
		return netip.AddrFrom4([4]byte(bytes[:4])).String()
	}
	return text
}

// nextRange returns the following range of the same size.
func nextRange(p netip.Prefix) netip.Prefix {
	bytes := p.Addr().AsSlice()
	for i := (p.Bits() - 1) / 8; i >= 0; i-- {
		if bytes[i]++; bytes[i] != 0 {
			break
		}
	}
	addr, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(addr, p.Bits())
}
