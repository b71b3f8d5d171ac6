package basedevices

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// settingsOf is a [sysctls.Writer] with one owner.
type settingsOf map[string]sysctls.Setting

func (w settingsOf) Replace(owner string, settings []sysctls.Setting) error {
	clear(w)
	return w.Update(owner, settings, nil)
}

func (w settingsOf) Update(_ string, put []sysctls.Setting, remove []string) error {
	for _, name := range remove {
		delete(w, name)
	}
	for _, s := range put {
		w[s.Name] = s
	}
	return nil
}

// pods is a table of endpoints with a feed.
type pods struct {
	db    *statedb.DB
	table statedb.RWTable[*endpoints.Endpoint]
	feed  *changefeed.Feed[*endpoints.Endpoint]
	node  *localnode.LocalNode
}

func newPods(tb testing.TB) *pods {
	tb.Helper()
	db := statedb.New()
	table, err := endpoints.NewTable(db)
	require.NoError(tb, err)
	feed, err := follow(db, table)
	require.NoError(tb, err)
	tb.Cleanup(feed.Close)
	return &pods{db, table, feed, &localnode.LocalNode{Ready: true,
		IPv4: localnode.Family{AllocRange: netip.MustParsePrefix("10.1.0.0/16"), Router: netip.MustParseAddr("10.1.0.1")},
		IPv6: localnode.Family{AllocRange: netip.MustParsePrefix("fd00::/64"), Router: netip.MustParseAddr("fd00::1")}}}
}

// commit inserts or deletes endpoints.
func (p *pods) commit(tb testing.TB, gone bool, list ...*endpoints.Endpoint) {
	tb.Helper()
	txn := p.db.WriteTxn(p.table)
	defer txn.Commit()
	for _, ep := range list {
		_, _, err := p.table.Insert(txn, ep)
		if gone {
			_, _, err = p.table.Delete(txn, ep)
		}
		require.NoError(tb, err)
	}
}

// next returns a snapshot and the changes up to it.
func (p *pods) next() (statedb.ReadTxn, []statedb.Change[*endpoints.Endpoint]) {
	txn := p.db.ReadTxn()
	return txn, p.feed.UpTo(txn, statedb.NewWatchSet())
}

func podOf(id int) *endpoints.Endpoint {
	return &endpoints.Endpoint{ID: uint16(id), ContainerID: strconv.Itoa(id), IfName: "eth0", HostIfName: fmt.Sprintf("lxc%012x", id),
		IPv4: netip.AddrFrom4([4]byte{10, 1, byte(id >> 8), byte(id)})}
}

// someChanges inserts, changes and deletes endpoints of few ids. Ids, link names and addresses are reused before a change is noticed, and links have no name or
// the name of another endpoint's link.
func (p *pods) someChanges(t *testing.T, random *rand.Rand) {
	const ids = 8
	for range 1 + random.IntN(4) {
		id := 1 + random.IntN(ids)
		ep := podOf(id)
		ep.ContainerID = strconv.Itoa(id + ids*random.IntN(3))
		ep.HostIfName = []string{"", "lxc1", "lxc2", "lxc3", fmt.Sprint("lxc-", id)}[random.IntN(5)]
		ep.IPv4 = netip.AddrFrom4([4]byte{10, byte(1 + random.IntN(2)), 0, byte(id)})
		ep.IPv6 = netip.MustParseAddr(fmt.Sprintf("fd00:0:0:%d::%d", random.IntN(2), id))
		ep.Quarantine = []string{"", "", "its link is gone"}[random.IntN(3)]
		p.commit(t, random.IntN(3) == 0, ep)
	}
}

// TestIncremental_EqualsFullPass checks that the incremental passes miss no change of an endpoint.
func TestIncremental_EqualsFullPass(t *testing.T) {
	t.Parallel()
	random, p := testseed.New(t), newPods(t)
	have := settingsOf{}
	links := podLinks{db: p.db, endpoints: p.table, writer: have, names: map[uint16]string{}}
	routes := outside{}
	for round := range 3000 {
		p.someChanges(t, random)
		txn, list := p.next()
		before := fmt.Sprint(routes)

		require.NoError(t, links.update(txn, list))
		altered := routes.update(p.node, list)

		want := settingsOf{}
		fresh := podLinks{db: p.db, endpoints: p.table, writer: want}
		require.NoError(t, fresh.replace(txn))
		require.Equal(t, want, have, "settings in round %d", round)
		require.Equal(t, fresh.names, links.names, "round %d", round)
		require.Equal(t, outsideOf(p.node, statedb.ToSeq(p.table.All(txn))), routes, "routes in round %d", round)
		require.Equal(t, before != fmt.Sprint(routes), altered, "round %d", round)
	}
}

// sizes are the numbers of endpoints beside the one that is added and deleted.
var sizes = []int{10, 200, 1000}

// round processes the changes of one pass.
type round func(statedb.ReadTxn, []statedb.Change[*endpoints.Endpoint])

// benchmark measures a pass after an endpoint is added and a pass after it is deleted.
func benchmark(b *testing.B, name string, begin func(*pods) round) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
			p := newPods(b)
			pass := begin(p)
			for i := range n {
				p.commit(b, false, podOf(i+1))
			}
			pass(p.next())
			for b.Loop() {
				p.commit(b, false, podOf(n+1))
				pass(p.next())
				p.commit(b, true, podOf(n+1))
				pass(p.next())
			}
		})
	}
}

func BenchmarkPodLinks(b *testing.B) {
	links := func(p *pods) *podLinks {
		return &podLinks{db: p.db, endpoints: p.table, writer: settingsOf{}, names: map[uint16]string{}}
	}
	benchmark(b, "changed", func(p *pods) round {
		l := links(p)
		return func(txn statedb.ReadTxn, list []statedb.Change[*endpoints.Endpoint]) { _ = l.update(txn, list) }
	})
	benchmark(b, "all", func(p *pods) round {
		l := links(p)
		return func(txn statedb.ReadTxn, _ []statedb.Change[*endpoints.Endpoint]) { _ = l.replace(txn) }
	})
}

func BenchmarkPodRoutes(b *testing.B) {
	benchmark(b, "changed", func(p *pods) round {
		o := outside{}
		return func(_ statedb.ReadTxn, list []statedb.Change[*endpoints.Endpoint]) { o.update(p.node, list) }
	})
	benchmark(b, "all", func(p *pods) round {
		return func(txn statedb.ReadTxn, _ []statedb.Change[*endpoints.Endpoint]) {
			outsideOf(p.node, statedb.ToSeq(p.table.All(txn)))
		}
	})
}
