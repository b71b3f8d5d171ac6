package servicecontroller

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// wide returns a Service with many ports, and slices with some of its endpoints each.
func wide(ports, endpoints, each int) (*k8s.Service, []any) {
	s := &k8s.Service{Namespace: "d", Name: "wide", Type: "ClusterIP", ClusterIPs: []netip.Addr{numberedAddr(96, 1), netip.MustParseAddr("fd00:96::1")}}
	var behind []k8s.SlicePort
	for i := range ports {
		s.Ports = append(s.Ports, k8s.ServicePort{Name: fmt.Sprint("p", i), Protocol: "TCP", Port: uint16(1 + i)})
		behind = append(behind, k8s.SlicePort{Name: fmt.Sprint("p", i), Protocol: "TCP", Port: uint16(10_001 + i)})
	}
	var slices []any
	for first := 0; first < endpoints; first += each {
		slice := &k8s.EndpointSlice{Namespace: "d", Name: fmt.Sprint("wide-", first), Service: "wide", AddressType: "IPv4", Ports: behind}
		for i := first; i < first+each; i++ {
			slice.Endpoints = append(slice.Endpoints, k8s.SliceEndpoint{Addrs: []netip.Addr{numberedAddr(1, i)}, Ready: true, NodeName: "two"})
		}
		slices = append(slices, slice)
	}
	return s, slices
}

// TestService_TooManyFrontends: the frontends of one Service have a limit, because a commit contains all of them. ClusterIPs have priority.
func TestService_TooManyFrontends(t *testing.T) {
	t.Parallel()
	const ports, addrs = 2000, 2000
	b := newBench(t, DefaultConfig, &fakeIDs{})
	b.state(sources.Synced)
	s, behind := wide(ports, 1, 1)
	for i := range addrs {
		s.ExternalIPs = append(s.ExternalIPs, numberedAddr(200, i))
	}
	b.insert(s, outer("d", "web", "10.96.9.1", "198.51.100.1", 1))
	b.insert(behind...)
	b.step()
	b.expect("problem", b.problemsOf("d/wide"), "frontends: more than 16384; ClusterIPs have priority, then node ports, load balancer addresses and external IPs")
	b.expect("another Service", b.problemsOf("d/web"), "")
	kinds := map[string]int{}
	for f := range b.c.Frontends.All(b.db.ReadTxn()) {
		kinds[f.Service+" "+string(f.Kind)]++
	}
	require.Equal(t, map[string]int{"d/wide ClusterIP": 2 * ports, "d/wide " + string(frontends.ExternalIP): maxClaims - 2*ports,
		"d/web ClusterIP": 1, "d/web " + string(frontends.ExternalIP): 1}, kinds)
	fewer := *s
	fewer.ExternalIPs = s.ExternalIPs[:1]
	b.insert(&fewer)
	b.step()
	b.expect("fewer addresses", b.problemsOf("d/wide"), "")
	require.Equal(t, 3*ports+2, b.c.Frontends.NumObjects(b.db.ReadTxn()))
}

// TestService_TooManyPorts: a Service cannot exceed the limit by ports alone, and the ports without a frontend have no backends.
func TestService_TooManyPorts(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	b.state(sources.Synced)
	s, behind := wide(maxClaims+100, 1, 1)
	s.ClusterIPs = s.ClusterIPs[:1]
	b.insert(s)
	b.insert(behind...)
	b.step()
	require.Contains(t, b.problemsOf("d/wide"), "frontends: more than 16384")
	require.Equal(t, maxClaims, b.c.Frontends.NumObjects(b.db.ReadTxn()))
	require.Equal(t, maxClaims, b.c.Backends.NumObjects(b.db.ReadTxn()))
}

// TestService_TooManyBackends: of a Service with too many endpoints behind all ports, each port has the endpoints with the lowest addresses, whether the
// first computation or a changed slice exceeds the limit.
func TestService_TooManyBackends(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ ports, endpoints, each, rosters int }{
		"many ports":     {2000, 48, 16, 0},
		"many endpoints": {2, 32_800, 100, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, DefaultConfig, &fakeIDs{})
			b.state(sources.Synced)
			s, behind := wide(c.ports, c.endpoints, c.each)
			s.ClusterIPs = s.ClusterIPs[:1]
			expect := func(what, problem string, first, count, rosters int) {
				t.Helper()
				b.step()
				b.expect(what, b.problemsOf("d/wide"), problem)
				txn := b.db.ReadTxn()
				require.Equal(t, c.ports*count, b.c.Backends.NumObjects(txn), what)
				for row := range b.c.Backends.All(txn) {
					require.False(t, row.Addr.Less(numberedAddr(1, first)) || numberedAddr(1, first+count-1).Less(row.Addr), what)
				}
				for f := range b.c.Frontends.All(txn) {
					require.Len(t, f.Backends, count, what)
				}
				require.Len(t, b.c.rosters, rosters, what)
			}
			const problem = "endpoints: more than 65536 behind all ports; each port has those with the lowest addresses"
			b.insert(s)
			b.insert(behind...)
			expect("too many", problem, 0, maxMembers/c.ports, 0)
			b.remove(behind[0])
			expect("one slice less", "", c.each, c.endpoints-c.each, c.rosters)
			b.insert(behind[0])
			expect("too many again", problem, 0, maxMembers/c.ports, 0)
		})
	}
}
