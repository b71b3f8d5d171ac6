package tests

import (
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
)

// A client keeps a backend only if its scope contains it. An outside client that a pod on another node served, before the service got the traffic policy
// Local, gets a local pod; a client on this node keeps its backend.
func TestPrivilegedService_AffinityOfScopes(t *testing.T) {
	t.Parallel()
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		const number, here, elsewhere = 1, 10, 11
		from, service := on(client[family], 4000), on(balancer[family], 80)
		pods := []netip.AddrPort{on(podA.addr(family), 8080), on(distantPod[family], 8080)}
		n.serve(number, service, loadbalancer.UDP, 0, pods...)
		address := loadbalancer.Address{Addr: service.Addr(), Port: service.Port(), Protocol: loadbalancer.UDP}
		n.update(bpf.MapServices, bpf.NewServiceKey(address, bpf.ScopeInternal), bpf.Service{Id: number, First: here, Count: 2, Affinity: 600, Flags: bpf.ServiceAffinity})
		n.update(bpf.MapServices, bpf.NewServiceKey(address, bpf.ScopeExternal), bpf.Service{Id: number, First: here, Count: 1, Affinity: 600,
			Flags: bpf.ServiceAffinity | bpf.ServiceOutside | bpf.ServiceTwoScopes | bpf.ServiceLocalOnly})
		n.update(bpf.MapAffinityMembers, bpf.AffinityMember{Service: number, Backend: here}, uint32(1<<bpf.ScopeExternal|1<<bpf.ScopeInternal))
		n.update(bpf.MapAffinityMembers, bpf.AffinityMember{Service: number, Backend: elsewhere}, uint32(1<<bpf.ScopeInternal))
		for _, who := range []netip.Addr{client[family], podB.addr(family)} {
			n.update(bpf.MapAffinity, bpf.AffinityKey{Service: number, Kind: uint32(family), Client: bpf.NewAddrKey(who).Addr},
				bpf.AffinityEntry{Backend: elsewhere, Used: now(t)})
		}
		n.wantPacket(n.run(bpf.NetdevIngress, ifUplink, coming(from, service).bytes(t)), actUnspec, coming(from, pods[0]).bytes(t))
		for sport := range uint16(16) {
			n.passes(podB, sent(podB, podB.addr(family), service.Addr()).ports(5000+sport, service.Port()).bytes(t), actOK)
		}
	})
}

// A full map does not end the affinity of new clients: the client that was idle longest loses its entry.
func TestPrivilegedService_FullAffinityMap_NewClientsGetAffinity(t *testing.T) {
	t.Parallel()
	onNetdevs(t, func(t *testing.T, n *node, family int) {
		const number = 1
		from, service := on(client[family], 4000), on(balancer[family], 80)
		n.serve(number, service, loadbalancer.UDP, 0, on(podA.addr(family), 8080), on(podB.addr(family), 8080))
		address := loadbalancer.Address{Addr: service.Addr(), Port: service.Port(), Protocol: loadbalancer.UDP}
		n.update(bpf.MapServices, bpf.NewServiceKey(address, bpf.ScopeExternal), bpf.Service{Id: number, First: number * 10, Count: 2, Affinity: 600,
			Flags: bpf.ServiceAffinity | bpf.ServiceOutside})
		affinity := n.maps[bpf.MapAffinity]
		for i := range affinity.MaxEntries() {
			n.update(bpf.MapAffinity, bpf.AffinityKey{Service: 2, Kind: 4, Client: [16]uint8{byte(i), byte(i >> 8), byte(i >> 16), 1}},
				bpf.AffinityEntry{Backend: 20, Used: now(t)})
		}
		if got := n.run(bpf.NetdevIngress, ifUplink, coming(from, service).bytes(t)); got.action != actUnspec {
			t.Fatalf("action %d", int32(got.action))
		}
		var entry bpf.AffinityEntry
		key := bpf.AffinityKey{Service: number, Kind: uint32(family), Client: bpf.NewAddrKey(client[family]).Addr}
		if err := affinity.Lookup(key, &entry); err != nil || entry.Backend/10 != number {
			t.Errorf("the client has the affinity %+v, %v", entry, err)
		}
	})
}
