package servicecontroller

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// TestSharedBackend_ChangesCostEachServiceOnce: a change of a shared backend computes each of its services once and writes the row of the backend once.
func TestSharedBackend_ChangesCostEachServiceOnce(t *testing.T) {
	t.Parallel()
	const many, each = 300, 10
	s := newSharing(t, many, each)
	row := func() *backends.Backend { return s.c.backend(s.db.ReadTxn(), at("10.1.0.0:8012/TCP")) }
	expect := func(what string, models, endpoints int, want written) {
		t.Helper()
		done, rows := s.counted()
		require.Equal(t, tally{models: models, endpoints: endpoints}, done, what)
		require.Equal(t, want, rows, what)
		s.agree(what)
	}
	s.insert(s.slice(7, false))
	expect("one service calls it not ready", 1, each, written{frontends: 1, commits: 1})
	require.Equal(t, backends.Active, row().State)
	s.insert(s.slice(7, true))
	expect("and ready", 1, each, written{frontends: 1, commits: 1})
	s.setReady(false)
	expect("all call it not ready", many, many*each, written{frontends: many, backends: 1, commits: 1})
	require.Equal(t, backends.NotReady, row().State)
	s.insert(&endpoints.Endpoint{ID: 1, ContainerID: "c", IfName: "eth0", IPv4: numberedAddr(1, 0)})
	expect("it is on this node", 0, 0, written{backends: 1, commits: 1})
	require.True(t, row().Local)
	s.leave()
	expect("no service names it", many, many*(each-1), written{services: many, backends: 1, commits: 1})
	require.Nil(t, row())
	s.setReady(true)
	expect("all name it again", many, many*each, written{services: many, frontends: many, backends: 2, commits: 1})
	require.Len(t, row().Services, many)
	for i := range many {
		s.remove(s.slice(i, true))
	}
	expect("all slices are removed", many, 0, written{services: many, frontends: many, backends: each, commits: 1})
	require.Empty(t, s.c.shared)
}

// TestSynced_ComputesEachServiceOnce: if the snapshot on disk is up to date, the pass after the sync computes each service once and writes no row.
func TestSynced_ComputesEachServiceOnce(t *testing.T) {
	t.Parallel()
	const many = 300
	s := newSharing(t, many, 10)
	next := newBench(t, DefaultConfig, &fakeIDs{})
	next.state(sources.Snapshot)
	for row := range s.svcs.All(s.db.ReadTxn()) {
		next.insert(row)
	}
	for row := range s.slcs.All(s.db.ReadTxn()) {
		next.insert(row)
	}
	done, rows := next.counted()
	require.Equal(t, many, done.models, "from the copy")
	require.Equal(t, written{services: many, frontends: many, backends: 2 * 10, commits: 1}, rows, "from the copy: backends with their first report, and with all")
	next.state(sources.Synced)
	done, rows = next.counted()
	require.Equal(t, many, done.models, "synced")
	require.Equal(t, written{commits: 1}, rows, "synced")
	next.agree("synced")
}

// TestBackend_MovedBetweenServices_KeepsID: established connections belong to the backend and not to the service.
func TestBackend_MovedBetweenServices_KeepsID(t *testing.T) {
	t.Parallel()
	for _, from := range []int{0, 1} { // the service that names it first is computed first, or second
		s := newSharing(t, 2, 1)
		s.remove(s.slice(1-from, true))
		s.step()
		before := s.c.backend(s.db.ReadTxn(), at("10.1.0.0:8012/TCP"))
		s.remove(s.slice(from, true))
		s.insert(s.slice(1-from, true))
		s.step()
		after := s.c.backend(s.db.ReadTxn(), at("10.1.0.0:8012/TCP"))
		require.Equal(t, []string{fmt.Sprint("d/s", 1-from)}, after.Services)
		require.Equal(t, before.ID, after.ID)
	}
}

// TestShared_Model compares the reports about a backend with a map, when services report more than once in a commit.
func TestShared_Model(t *testing.T) {
	t.Parallel()
	random, s, want := testseed.New(t), &shared{}, map[string]report{}
	states := []backends.State{"", backends.NotReady, backends.Terminating, backends.Active}
	for range 2000 {
		for range random.IntN(6) {
			r := report{service: fmt.Sprint("d/s", random.IntN(6)), state: states[random.IntN(4)]}
			if want[r.service] = r; r.state == "" {
				delete(want, r.service)
			} else if random.IntN(2) == 0 {
				r.node = fmt.Sprint("node-", random.IntN(3))
				want[r.service] = r
			}
			s.change(r)
		}
		s.settle()
		names := slices.Sorted(maps.Keys(want))
		var row backends.Backend
		s.merge(&row)
		state, node := backends.NotReady, ""
		for i, name := range names {
			require.Equal(t, want[name], s.reports[i])
			if rank(want[name].state) > rank(state) {
				state = want[name].state
			}
			if node == "" {
				node = want[name].node
			}
		}
		require.Len(t, s.reports, len(names))
		require.Equal(t, []string{string(state), node}, []string{string(row.State), row.Node})
		require.Equal(t, names, slices.Clip(s.names(nil)), "%d reports", len(names))
	}
}

// TestLargeService_ReadsChangedSlices: a pass reads the old and the new endpoints of changed slices, and no other slices.
func TestLargeService_ReadsChangedSlices(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 20)
	expect := func(what string, read int, want written) {
		t.Helper()
		done, rows := c.counted()
		require.Equal(t, tally{models: 1, endpoints: read}, done, what)
		require.Equal(t, want, rows, what)
		c.agree(what)
	}
	c.insert(c.slice(5, false))
	expect("one endpoint is not ready", 2*inSlice, written{frontends: 1, backends: 1, commits: 1})
	less := c.slice(5, true)
	less.Endpoints = less.Endpoints[2:]
	c.insert(less)
	expect("two endpoints of a slice are removed", 2*inSlice-2, written{services: 1, frontends: 1, backends: 2, commits: 1})
	c.insert(c.slice(20, true))
	expect("a slice is added", inSlice, written{services: 1, frontends: 1, backends: inSlice, commits: 1})
	c.remove(c.slice(20, true))
	expect("a slice is removed", inSlice, written{services: 1, frontends: 1, backends: inSlice, commits: 1})
	more := c.slice(6, true)
	more.Endpoints = append(more.Endpoints, c.slice(5, true).Endpoints[:2]...)
	c.insert(more)
	expect("two endpoints are added", 2*inSlice+2, written{services: 1, frontends: 1, backends: 2, commits: 1})
	less = c.slice(6, true)
	c.insert(less, c.slice(5, true))
	expect("they move to another slice", 4*inSlice, written{commits: 1})
	local := c.slice(7, true)
	local.Endpoints[0].NodeName = "one"
	c.insert(local)
	expect("one is on this node, as its slice says", 2*inSlice, written{services: 1, backends: 1, commits: 1})
}

// TestLargeService_ReadsAllSlices: a pass reads all slices if the changed ones do not suffice: another slice names the endpoint too, or the Service or this
// node has changed.
func TestLargeService_ReadsAllSlices(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 5)
	const all = 5 * inSlice
	expect := func(what string, atLeast int) {
		t.Helper()
		done, _ := c.counted()
		require.GreaterOrEqual(t, done.endpoints, atLeast, what)
		c.agree(what)
	}
	twice := c.slice(1, true)
	twice.Endpoints = append(twice.Endpoints, c.slice(0, false).Endpoints[0]) // in a worse state than in the other slice
	c.insert(twice)
	expect("two slices name an endpoint", all+1)
	c.remove(c.slice(0, true))
	expect("the better one is removed", all+1-inSlice)
	c.insert(c.slice(1, true))
	expect("and the other too", 2*inSlice+1)
	s, _, _ := c.svcs.Get(c.db.ReadTxn(), k8s.ServiceByName("d/crowd"))
	published := *s
	published.PublishNotReadyAddrs = true
	c.insert(&published, c.slice(2, false))
	expect("endpoints that are not ready are published", all-inSlice)
	c.insert(nodeaddresses.Address{Addr: netip.MustParseAddr("192.0.2.1"), Device: "eth0"})
	c.step()
	c.insert(c.slice(2, true))
	expect("the node has another address", all-inSlice)
	c.insert(&k8s.Node{Name: "one", Labels: map[string]string{"topology.kubernetes.io/zone": "x"}})
	expect("the node is in a zone", all-inSlice)
}

// TestPass_ComputesChangedServicesInPortions: a pass takes a portion of the services with changed endpoints, the last changed ones first, so that
// the passes before a change of one service are short.
func TestPass_ComputesChangedServicesInPortions(t *testing.T) {
	t.Parallel()
	s := newSharing(t, 5, 2)
	s.c.portion = 2
	ready := func() (names []string) {
		for f := range s.c.Frontends.All(s.db.ReadTxn()) {
			if len(f.Backends) == 2 {
				names = append(names, f.Service)
			}
		}
		return names
	}
	s.setReady(false)
	require.Equal(t, tally{models: 2, endpoints: 4, left: 3}, s.pass())
	old := ready()
	require.Len(t, old, 3)
	s.insert(&k8s.Service{Namespace: "d", Name: "new", Type: "ClusterIP", ClusterIPs: ips("10.96.9.9"), Ports: []k8s.ServicePort{{Protocol: "TCP", Port: 80}}},
		s.slice(0, true), s.slice(1, true))
	require.Equal(t, 3, s.pass().models) // the new service is in the next pass, even if other services are left
	require.NotNil(t, s.c.frontend(s.db.ReadTxn(), at("10.96.9.9:80/TCP")))
	require.Subset(t, ready(), []string{"d/s0", "d/s1"})
	s.step()
	s.agree("in the end")
	require.Equal(t, []string{"d/s0", "d/s1"}, ready())
	s.insert(&k8s.Node{Name: "one", Labels: map[string]string{"topology.kubernetes.io/zone": "x"}})
	require.Equal(t, tally{models: 2, endpoints: 4, left: 4}, s.pass(), "the zone of the node concerns all")
	s.step()
	s.agree("another zone")
}

// TestPass_ManyEndpoints_TakesFewerServices: large services end a portion early, because the time of a pass is proportional to its endpoints.
func TestPass_ManyEndpoints_TakesFewerServices(t *testing.T) {
	t.Parallel()
	s := newSharing(t, 5, 2)
	s.c.portionBackends = 3
	s.setReady(false)
	require.Equal(t, tally{models: 2, endpoints: 4, left: 3}, s.pass(), "the second service exceeds the number of backends")
	require.Equal(t, tally{models: 2, endpoints: 4, left: 1}, s.pass())
	require.Equal(t, tally{models: 1, endpoints: 2}, s.pass())
	s.agree("in the end")
}

// TestPass_CommitsInPortions: a pass makes several commits, also when a change concerns the claims of thousands of services.
func TestPass_CommitsInPortions(t *testing.T) {
	t.Parallel()
	b := newBench(t, DefaultConfig, &fakeIDs{})
	b.fill(0, 0)
	b.c.portion = 10
	for i := range 45 {
		s := outer("d", fmt.Sprint("s", i), numberedAddr(96, i).String(), "", 1)
		s.Type, s.Ports[0].NodePort = typeNodePort, uint16(30000+i)
		b.insert(s)
	}
	require.Equal(t, 5, b.stepWithoutGaps(), "new services")
	b.insert(nodeaddresses.Address{Addr: netip.MustParseAddr("192.0.2.2"), NodePort: true, Device: "eth0"})
	require.Equal(t, 5, b.stepWithoutGaps(), "another address of the node")
	b.agree("another address")
}

// TestPass_AddressKeepsOwnerBetweenCommits: services release addresses in one portion that other services own or get in another portion.
func TestPass_AddressKeepsOwnerBetweenCommits(t *testing.T) {
	t.Parallel()
	external := func(name, ip, outside string) *k8s.Service { return outer("d", name, ip, outside, 1) }
	ofNode := func(name, ip string, port uint16) *k8s.Service {
		s := outer("d", name, ip, "", 1)
		s.Type, s.Ports[0].NodePort = typeNodePort, port
		return s
	}
	ofLoadBalancer := func(name, ip, outside string, port uint16) *k8s.Service {
		s := outer("d", name, ip, "", 1)
		s.Type, s.IngressIPs, s.Ports[0].Port = typeLB, ips(outside), port
		return s
	}
	for name, c := range map[string]struct{ before, after []any }{
		"an external address": {
			[]any{external("a", "10.96.9.1", "198.51.100.1"), external("b", "10.96.9.2", "")},
			[]any{external("a", "10.96.9.1", ""), external("b", "10.96.9.2", "198.51.100.1")}},
		"a ClusterIP": {
			[]any{external("a", "10.96.9.1", ""), external("b", "10.96.9.2", "")},
			[]any{external("a", "10.96.9.3", ""), external("b", "10.96.9.1", "")}},
		"a node port": {
			[]any{ofNode("a", "10.96.9.1", 30001), ofNode("b", "10.96.9.2", 30002)},
			[]any{ofNode("a", "10.96.9.1", 30003), ofNode("b", "10.96.9.2", 30001)}},
		"a port at an address of this node": {
			[]any{ofLoadBalancer("a", "10.96.9.1", "192.0.2.1", 30001), ofNode("b", "10.96.9.2", 30002)},
			[]any{ofLoadBalancer("a", "10.96.9.1", "198.51.100.1", 30001), ofNode("b", "10.96.9.2", 30001)}},
		"an address that had several claimants and now has none": {
			[]any{external("a", "10.96.9.1", "198.51.100.1"), external("b", "10.96.9.2", "198.51.100.1")},
			[]any{external("a", "10.96.9.1", ""), external("b", "10.96.9.2", "")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, order := range [][]int{{0, 1}, {1, 0}} {
				b := newBench(t, DefaultConfig, &fakeIDs{})
				b.fill(0, 0)
				b.insert(c.before...)
				b.step()
				b.c.portion = 1
				for i, which := range order {
					b.insert(c.after[which], outer("d", fmt.Sprint("new", i), numberedAddr(97, i).String(), "", 1))
				}
				require.Greater(t, b.stepWithoutGaps(), 1)
				b.agree("in the end")
			}
		})
	}
}
