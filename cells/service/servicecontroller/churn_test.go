package servicecontroller

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/waggle-net/waggle/pkg/serviceannotations"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// churn makes random objects from few names and addresses, so that conflicts are frequent.
type churn struct {
	*rand.Rand
	*bench
	made int64
}

func pickOne[T any](c *churn, list ...T) T { return list[c.IntN(len(list))] }

func (c *churn) addr(is4 bool, block, count int) netip.Addr {
	if is4 {
		return netip.AddrFrom4([4]byte{10, byte(block), 0, byte(1 + c.IntN(count))})
	}
	return netip.AddrFrom16([16]byte{0xfd, byte(block), 15: byte(1 + c.IntN(count))})
}

// some returns random keys, each with one of its values.
func (c *churn) some(values map[string][]string) map[string]string {
	some := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if c.IntN(3) == 0 {
			some[key] = pickOne(c, values[key]...)
		}
	}
	return some
}

func (c *churn) families() []bool {
	return pickOne(c, []bool{true}, []bool{false}, []bool{true, false})
}

const (
	blockClusterIPs, blockPods, blockNodes, blockOutside = 96, 1, 0, 200
)

func (c *churn) randomService() *k8s.Service {
	c.made += int64(c.IntN(2))
	s := &k8s.Service{Namespace: pickOne(c, "a", "b"), Name: pickOne(c, "web", "web-api", "dns"), Created: c.made,
		Type: pickOne(c, "ClusterIP", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"), Headless: c.IntN(10) == 0,
		ExternalLocal: c.IntN(3) == 0, InternalLocal: c.IntN(4) == 0, PublishNotReadyAddrs: c.IntN(5) == 0}
	if c.IntN(8) == 0 {
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	}
	if c.IntN(4) == 0 {
		s.Affinity = 100e9
	}
	s.Annotations = c.some(map[string][]string{serviceannotations.Type: {"ClusterIP", "NodePort", "LoadBalancer", "ExternalIPs"},
		serviceannotations.Node: {"edge", "edge", "core", ""}, serviceannotations.Algorithm: {"maglev", "maglev", "random", "least"}, serviceannotations.Forwarding: {"snat", "dsr"},
		serviceannotations.NodeSelector: {"rack=1", "rack!=1,service.cilium.io/node", "rack in"}, serviceannotations.SourceRanges: {"deny", "allow", "no"},
		"service.cilium.io/global": {"true"}})
	for _, is4 := range c.families() {
		s.ClusterIPs = append(s.ClusterIPs, c.addr(is4, blockClusterIPs, 6))
	}
	for i, name := range []string{"http", "udp"}[:1+c.IntN(2)] {
		s.Ports = append(s.Ports, k8s.ServicePort{Name: name, Protocol: []string{"TCP", "UDP"}[i], Port: pickOne(c, uint16(80), 80, 81, 81, 30001), NodePort: pickOne(c, uint16(0), 30001, 30002)})
	}
	outside := func() (list []netip.Addr) {
		for range c.IntN(3) {
			list = append(list, c.addr(c.IntN(2) == 0, pickOne(c, blockOutside, blockOutside, blockOutside, blockClusterIPs, blockNodes, blockPods), 3))
		}
		return list
	}
	s.ExternalIPs, s.IngressIPs = outside(), outside()
	if c.IntN(3) == 0 {
		s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	}
	if c.IntN(8) == 0 {
		s.Problems = []string{"cannot be read"}
	}
	return s
}

func (c *churn) randomSlice() *k8s.EndpointSlice {
	is4 := c.IntN(2) == 0
	s := &k8s.EndpointSlice{Namespace: pickOne(c, "a", "b"), Name: pickOne(c, "web-1", "web-2", "web-api", "web-api-1", "dns", "dns-1", "hand", "made"),
		Service: pickOne(c, "web", "web", "web-api", "dns", ""), AddressType: "IPv4"}
	if !is4 {
		s.AddressType = "IPv6"
	}
	for i, name := range []string{"http", "udp"} {
		if c.IntN(3) > 0 {
			s.Ports = append(s.Ports, k8s.SlicePort{Name: name, Protocol: []string{"TCP", "UDP"}[i], Port: 8080 + uint16(c.IntN(2))})
		}
	}
	hints := c.IntN(2) == 0
	for range c.IntN(4) {
		// Except for the state, most slices have the same data about an address, as for a pod.
		n := c.addr(is4, pickOne(c, blockPods, blockPods, blockPods, blockNodes), 5)
		last := n.AsSlice()[len(n.AsSlice())-1]
		e := k8s.SliceEndpoint{Addrs: []netip.Addr{n}, Ready: c.IntN(2) == 0, Terminating: c.IntN(3) == 0,
			NodeName: []string{"one", "two", ""}[last%3], Zone: []string{"x", "y"}[last%2], Pod: fmt.Sprint("a/pod-", last)}
		if c.IntN(6) == 0 { // a tenant's slice may contain any data
			e.NodeName, e.Pod = pickOne(c, "one", "two", ""), pickOne(c, "b/own", "")
		}
		e.Serving = e.Ready || c.IntN(2) == 0
		if hints || c.IntN(5) == 0 {
			e.ForZones = []string{pickOne(c, "x", "y")}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func (c *churn) randomPod() *k8s.Pod {
	c.made += int64(c.IntN(2))
	p := &k8s.Pod{Namespace: "a", Name: pickOne(c, "p", "q"), UID: pickOne(c, "u", "v"), Created: c.made, HostNetwork: c.IntN(10) == 0,
		Phase: pickOne(c, "Running", "Pending", "Failed", "Succeeded")}
	for _, is4 := range c.families() {
		if c.IntN(5) > 0 {
			p.PodIPs = append(p.PodIPs, c.addr(is4, blockPods, 5))
		}
	}
	for _, protocol := range []string{"TCP", "UDP"}[:c.IntN(3)] {
		p.HostPorts = append(p.HostPorts, k8s.HostPort{Protocol: protocol, Port: pickOne(c, uint16(53), 54, 30001), Container: 8080})
	}
	return p
}

func (c *churn) randomNode() *k8s.Node {
	n := &k8s.Node{Name: pickOne(c, "one", "two"), Addresses: []k8s.NodeAddress{{Type: "InternalIP", Address: c.addr(c.IntN(2) == 0, blockNodes, 3).String()}}}
	n.Labels = c.some(map[string][]string{"topology.kubernetes.io/zone": {"x", "y", ""}, serviceannotations.Node: {"edge", "core"}, "rack": {"1", "2"}})
	if c.IntN(2) == 0 {
		n.PodCIDRs = []string{"10.1.0.0/24"}
	}
	return n
}

func (c *churn) randomAddress() nodeaddresses.Address {
	return nodeaddresses.Address{Addr: c.addr(c.IntN(2) == 0, blockNodes, 3), Device: "eth0", NodePort: c.IntN(2) == 0}
}

func (c *churn) randomEndpoint() *endpoints.Endpoint {
	id := uint16(1 + c.IntN(3))
	e := &endpoints.Endpoint{ID: id, ContainerID: fmt.Sprint(id), IfName: "eth0"}
	for _, is4 := range c.families() {
		if is4 {
			e.IPv4 = c.addr(is4, blockPods, 5)
		} else {
			e.IPv6 = c.addr(is4, blockPods, 5)
		}
	}
	return e
}

// change inserts, replaces or removes a random object.
func (c *churn) change() {
	row := pickOne[func() any](c, func() any { return c.randomService() }, func() any { return c.randomService() }, func() any { return c.randomSlice() },
		func() any { return c.randomSlice() }, func() any { return c.randomSlice() }, func() any { return c.randomPod() }, func() any { return c.randomNode() },
		func() any { return c.randomAddress() }, func() any { return c.randomEndpoint() })()
	if c.IntN(4) == 0 {
		c.remove(row) // the object with that name, if it exists
		return
	}
	c.insert(row)
}

// TestChurn_TablesEqualANaiveModel changes objects at random, and after every few changes compares the tables with a simple model of all objects.
func TestChurn_TablesEqualANaiveModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			c := &churn{Rand: rand.New(rand.NewPCG(6, seed)), bench: newBench(t, DefaultConfig, &fakeIDs{})}
			c.c.Rules.agent.Maglev, c.c.Rules.agent.AlgorithmAnnotation = seed%3 == 1, seed%3 == 2
			for range 40 { // the first pass makes several commits, and the first claimant need not be the oldest
				c.made = int64(c.IntN(100))
				c.change()
			}
			c.c.portion = 1 + c.IntN(3)
			if seed%2 == 0 {
				c.c.many = 1 // all services have rosters
			}
			c.state(sources.Synced)
			c.firstPass()
			c.agree("first pass")
			for i := range 300 {
				for range 1 + c.IntN(6) {
					c.change()
				}
				c.stepWithoutGaps()
				c.agree(fmt.Sprint("step ", i))
			}
		})
	}
}
