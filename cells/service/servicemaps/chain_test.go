package servicemaps

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/datapath/servicemap"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// TestPrivilegedChain_MapsEqualAPlainModel changes Services, slices, and addresses of the node at random. They pass through both cells into real maps, some of
// whose writes fail, and the agent is restarted. After the last change the maps equal a simple model of the objects, and objects that exist before and after a
// restart keep their ids.
func TestPrivilegedChain_MapsEqualAPlainModel(t *testing.T) {
	t.Parallel()
	for round := range 2 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			c := newChain(t)
			for range 2 { // the last agent restores what its predecessor has restored and changed
				for range 40 {
					c.fails.Store(c.IntN(3) == 0)
					c.change()
					time.Sleep(time.Duration(c.IntN(3)) * time.Millisecond)
				}
				c.fails.Store(false)
				c.requireEqual()
				c.restart()
			}
		})
	}
}

// chain is the services of a node with their objects.
type chain struct {
	*testing.T
	*rand.Rand
	chainTables
	hive  *upstream.Hive
	log   *slog.Logger
	dir   string
	fails atomic.Bool // some writes of maps fail
	maps  pinnedmaps.Batches

	services map[string]*k8s.Service
	slices   map[string]*k8s.EndpointSlice
	addrs    map[netip.Addr]bool // of the node; the value reports whether NodePorts use the address
}

type chainTables struct {
	cell.In

	DB       *statedb.DB
	Services statedb.RWTable[*k8s.Service]
	Slices   statedb.RWTable[*k8s.EndpointSlice]
	Addrs    statedb.RWTable[nodeaddresses.Address]
	Sources  statedb.RWTable[sources.Source]
}

const chainNode = "node-1"

func newChain(t *testing.T) *chain {
	c := &chain{T: t, Rand: testseed.New(t), log: hivetest.Logger(t, hivetest.LogLevel(slog.LevelError)), dir: t.TempDir(),
		services: map[string]*k8s.Service{}, slices: map[string]*k8s.EndpointSlice{}, addrs: map[netip.Addr]bool{netip.MustParseAddr("192.0.2.1"): true}}
	// Each comparison reads all slots. The sizes are those of --bpf-lb-map-max=4096.
	sizes := map[string]uint32{bpf.MapServices: 4096, bpf.MapBackends: 4096, bpf.MapServiceSlots: 6144, bpf.MapSourceRanges: 4096}
	c.maps = unreliable{newMemoryMaps(t, sizes), &c.fails, &atomic.Int64{}}
	c.start()
	t.Cleanup(func() { c.stop() })
	return c
}

// unreliable maps fail every other call while fails is set.
type unreliable struct {
	memoryMaps
	fails *atomic.Bool
	calls *atomic.Int64 // number of calls while fails is set
}

func (u unreliable) shouldFail() bool { return u.fails.Load() && u.calls.Add(1)%2 == 0 }

func (u unreliable) PutBatch(name string, keys, values any) (int, error) {
	if u.shouldFail() {
		return 0, unix.ENOMEM
	}
	return u.memoryMaps.PutBatch(name, keys, values)
}

func (u unreliable) DeleteBatch(name string, keys any) (int, error) {
	if u.shouldFail() {
		return 0, unix.ENOMEM
	}
	return u.memoryMaps.DeleteBatch(name, keys)
}

// start starts an agent that knows the objects from the beginning.
func (c *chain) start() {
	c.Helper()
	c.hive = newWholeHive(c.maps, cell.Invoke(func(t chainTables) { c.chainTables = t }))
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.hive.RegisterFlags(flags)
	if err := flags.Parse([]string{"--state-dir=" + c.dir, "--node-name=" + chainNode, "--enable-ipv6"}); err != nil {
		c.Fatal(err)
	}
	if err := c.hive.Populate(c.log); err != nil {
		c.Fatal(err)
	}
	txn := c.DB.WriteTxn(c.Services, c.Slices, c.Addrs, c.Sources)
	mirror(txn, c.Services, c.services)
	mirror(txn, c.Slices, c.slices)
	c.insertAddrs(txn)
	insertSynced(txn, c.Sources)
	txn.Commit()
	if err := c.hive.Start(c.log, context.Background()); err != nil {
		c.Fatal(err)
	}
}

func (c *chain) stop() {
	if err := c.hive.Stop(c.log, context.Background()); err != nil {
		c.Error(err)
	}
}

// restart stops the agent and starts another one, with some changes in between.
func (c *chain) restart() {
	c.Helper()
	fronts, backs, err := servicemap.New(c.maps).IDs()
	if err != nil {
		c.Fatal(err)
	}
	c.stop()
	for range c.IntN(3) {
		c.alter()
	}
	c.start()
	c.requireEqual()
	frontsNow, backsNow, err := servicemap.New(c.maps).IDs()
	if err != nil {
		c.Fatal(err)
	}
	for _, ids := range [][2]map[loadbalancer.Address]uint32{{fronts, frontsNow}, {backs, backsNow}} {
		for a, id := range ids[1] {
			if before, had := ids[0][a]; had && before != id {
				c.Errorf("%s has id %d after a restart, and had %d", a, id, before)
			}
		}
	}
}

// change changes one object, and the tables with it.
func (c *chain) change() {
	c.alter()
	txn := c.DB.WriteTxn(c.Services, c.Slices, c.Addrs)
	defer txn.Commit()
	mirror(txn, c.Services, c.services)
	mirror(txn, c.Slices, c.slices)
	for row := range c.Addrs.All(txn) {
		if _, has := c.addrs[row.Addr]; !has {
			_, _, _ = c.Addrs.Delete(txn, row)
		}
	}
	c.insertAddrs(txn)
}

func (c *chain) insertAddrs(txn statedb.WriteTxn) {
	for addr, ports := range c.addrs {
		_, _, _ = c.Addrs.Insert(txn, nodeaddresses.Address{Addr: addr, Device: "eth0", NodePort: ports})
	}
}

// mirror sets the contents of a table, and leaves equal rows unchanged.
func mirror[R interface {
	comparable
	Key() string
}](txn statedb.WriteTxn, table statedb.RWTable[R], want map[string]R) {
	have := map[string]R{}
	for row := range table.All(txn) {
		have[row.Key()] = row
	}
	for key, row := range have {
		if _, wanted := want[key]; !wanted {
			_, _, _ = table.Delete(txn, row)
		}
	}
	for key, row := range want {
		if have[key] != row {
			_, _, _ = table.Insert(txn, row)
		}
	}
}

// alter creates, replaces or removes one object of a small set.
func (c *chain) alter() {
	i := c.IntN(8)
	name := fmt.Sprintf("service-%d", i)
	switch c.IntN(8) {
	case 0:
		delete(c.services, "shop/"+name)
	case 1:
		delete(c.slices, fmt.Sprintf("shop/%s-%d", name, c.IntN(3)))
	case 2:
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + c.IntN(4))})
		if c.IntN(2) == 0 {
			addr = netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", 1+c.IntN(3)))
		}
		if c.some() {
			delete(c.addrs, addr)
		} else {
			c.addrs[addr] = !c.some()
		}
	case 3, 4:
		s := c.service(name, i)
		c.services[s.Key()] = s
	default:
		s := c.slice(name)
		c.slices[s.Key()] = s
	}
}

func (c *chain) some() bool { return c.IntN(3) == 0 }

// service creates a Service with unique addresses and ports.
func (c *chain) service(name string, i int) *k8s.Service {
	s := &k8s.Service{Namespace: "shop", Name: name, Type: "ClusterIP", ExternalLocal: c.some(), InternalLocal: c.some(), PublishNotReadyAddrs: c.some(),
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)}), netip.MustParseAddr(fmt.Sprintf("fd00:10:96::%d", i+1))},
		Ports:      []k8s.ServicePort{{Name: "web", Protocol: "TCP", Port: uint16(80 + c.IntN(2)), TargetPort: "8080"}}}
	if c.some() {
		s.Ports = append(s.Ports, k8s.ServicePort{Name: "time", Protocol: "UDP", Port: 123, TargetPort: "8123"})
	}
	if c.some() {
		s.ClusterIPs = s.ClusterIPs[:1]
	}
	if c.some() {
		s.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})}
	}
	if c.some() {
		s.Type = "NodePort"
		for p := range s.Ports {
			s.Ports[p].NodePort = uint16(30000 + 10*i + p)
		}
	}
	return s
}

// slice creates one of three slices of a service, with endpoints that other services may have as well.
func (c *chain) slice(service string) *k8s.EndpointSlice {
	n := c.IntN(3)
	s := &k8s.EndpointSlice{Namespace: "shop", Name: fmt.Sprintf("%s-%d", service, n), Service: service, AddressType: "IPv4",
		Ports: []k8s.SlicePort{{Name: "web", Protocol: "TCP", Port: uint16(8080 + c.IntN(2))}, {Name: "time", Protocol: "UDP", Port: 8123}}}
	if n == 2 {
		s.AddressType = "IPv6"
	}
	for range c.IntN(4) {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(n), byte(1 + c.IntN(6))}) // not in two slices of a service
		if n == 2 {
			addr = netip.MustParseAddr(fmt.Sprintf("fd00::%d", 1+c.IntN(6)))
		}
		if slices.ContainsFunc(s.Endpoints, func(e k8s.SliceEndpoint) bool { return e.Addrs[0] == addr }) {
			continue
		}
		e := k8s.SliceEndpoint{Addrs: []netip.Addr{addr}, NodeName: fmt.Sprintf("node-%d", 1+c.IntN(2)), Ready: c.IntN(2) == 0}
		e.Serving = e.Ready || c.some()
		e.Terminating = !e.Ready && c.IntN(2) == 0
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// backendsByOrigin are the backends that take new connections of external and of internal clients.
type backendsByOrigin struct{ outside, inside []loadbalancer.Address }

// plain computes the expected backends from the objects in a simple way.
func (c *chain) plain() map[loadbalancer.Address]backendsByOrigin {
	all := map[loadbalancer.Address]backendsByOrigin{}
	for _, s := range c.services {
		for _, p := range s.Ports {
			protocol := loadbalancer.Protocol(map[string]uint8{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP}[p.Protocol])
			for _, is4 := range []bool{true, false} {
				if !slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool { return a.Is4() == is4 }) {
					continue
				}
				cluster, local := c.takers(s, p, protocol, is4)
				add := func(addr netip.Addr, port uint16, outside, inside []loadbalancer.Address) {
					if addr.Is4() == is4 {
						all[loadbalancer.Address{Addr: addr, Port: port, Protocol: protocol}] = backendsByOrigin{outside, inside}
					}
				}
				choose := func(isLocal bool) []loadbalancer.Address {
					if isLocal {
						return local
					}
					return cluster
				}
				for _, a := range s.ClusterIPs {
					add(a, p.Port, choose(s.InternalLocal), choose(s.InternalLocal))
				}
				for _, a := range s.ExternalIPs {
					add(a, p.Port, choose(s.ExternalLocal), cluster)
				}
				if p.NodePort == 0 {
					continue
				}
				for a, here := range c.addrs {
					if here {
						add(a, p.NodePort, choose(s.ExternalLocal), cluster)
					}
				}
				add(netip.MustParseAddr("127.0.0.1"), p.NodePort, cluster, cluster)
				add(netip.IPv6Loopback(), p.NodePort, cluster, cluster)
			}
		}
	}
	return all
}

// takers returns the ready backends, or else the terminating ones that still serve, of the cluster and of this node.
func (c *chain) takers(s *k8s.Service, p k8s.ServicePort, protocol loadbalancer.Protocol, is4 bool) (cluster, local []loadbalancer.Address) {
	var ready, terminating, readyLocal, terminatingLocal []loadbalancer.Address
	for _, slice := range c.slices {
		if slice.Service != s.Name {
			continue
		}
		for _, e := range slice.Endpoints {
			at := loadbalancer.Address{Addr: e.Addrs[0], Port: slice.Ports[slices.IndexFunc(slice.Ports, func(o k8s.SlicePort) bool { return o.Name == p.Name })].Port, Protocol: protocol}
			here := e.NodeName == chainNode
			switch {
			case at.Addr.Is4() != is4:
			case e.Ready || s.PublishNotReadyAddrs:
				ready = append(ready, at)
				if here {
					readyLocal = append(readyLocal, at)
				}
			case e.Serving && e.Terminating:
				terminating = append(terminating, at)
				if here {
					terminatingLocal = append(terminatingLocal, at)
				}
			}
		}
	}
	if len(ready) == 0 {
		ready = terminating
	}
	if len(readyLocal) == 0 {
		readyLocal = terminatingLocal
	}
	slices.SortFunc(ready, loadbalancer.Address.Compare)
	slices.SortFunc(readyLocal, loadbalancer.Address.Compare)
	return ready, readyLocal
}

// dumped returns the contents of the maps in the form of plain.
func (c *chain) dumped() (map[loadbalancer.Address]backendsByOrigin, error) {
	fronts, backs, err := servicemap.New(c.maps).Dump()
	if err != nil {
		return nil, err
	}
	byID := map[uint32]loadbalancer.Address{}
	for _, b := range backs {
		if !c.named(b.Address) {
			return nil, fmt.Errorf("backend %d, %s, is in no slice of a service", b.ID, b.Address)
		}
		byID[b.ID] = b.Address
	}
	all := map[loadbalancer.Address]backendsByOrigin{}
	for _, f := range fronts { // the external entry is first
		var list []loadbalancer.Address
		for _, id := range f.Backends {
			at, found := byID[id]
			if !found {
				return nil, fmt.Errorf("%s names backend %d, which is not there", f.Address, id)
			}
			list = append(list, at)
		}
		slices.SortFunc(list, loadbalancer.Address.Compare)
		if f.Scope == bpf.ScopeInternal {
			all[f.Address] = backendsByOrigin{all[f.Address].outside, list}
		} else {
			all[f.Address] = backendsByOrigin{list, list}
		}
	}
	return all, nil
}

// named reports whether a slice of a service names a backend.
func (c *chain) named(at loadbalancer.Address) bool {
	for _, s := range c.slices {
		if c.services["shop/"+s.Service] == nil || !slices.ContainsFunc(s.Endpoints, func(e k8s.SliceEndpoint) bool { return e.Addrs[0] == at.Addr }) {
			continue
		}
		if slices.ContainsFunc(s.Ports, func(p k8s.SlicePort) bool { return p.Port == at.Port }) {
			return true
		}
	}
	return false
}

// requireEqual waits until the maps equal the model and have no other entries.
func (c *chain) requireEqual() {
	c.Helper()
	want := c.plain()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		have, err := c.dumped()
		if err == nil && reflect.DeepEqual(have, want) {
			return
		}
		if time.Now().After(deadline) {
			for _, a := range slices.SortedFunc(maps.Keys(want), loadbalancer.Address.Compare) {
				if h, found := have[a]; !found || !reflect.DeepEqual(h, want[a]) {
					c.Errorf("%s: the maps have %v (%t), want %v", a, h, found, want[a])
				}
				delete(have, a)
			}
			c.Fatalf("the maps also have %v: %v", have, err)
		}
	}
}
