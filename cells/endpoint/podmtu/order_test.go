package podmtu

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/podmtus"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// path is the path of packets from one pod to another in one address family.
type path struct {
	from, to *fakePod
	ipv6     bool
}

// fits returns the maximum length of a packet that the pod sends, and the maximum length that arrives: the host end receives the packets of the pod, and the
// end in the pod receives the packets of other senders.
func (p path) fits() (sent, arrives int) {
	return p.from.routes[p.ipv6], min(p.from.host, p.to.link)
}

// The MTU of a node changes many times, and calls fail in between. After each call a packet that arrived before the change either arrives, or is longer than
// its sender may send; and over IPv4 all packets that a pod may send arrive, if they did before. (The kernel raises routes of IPv6 with the link.) Once no call
// fails, all pods have the MTU.
func TestFollower_MTUChanges_LoseNoFittingPacket(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	db := statedb.New()
	table, err := podmtus.NewTable(db)
	require.NoError(t, err)
	eps, err := endpoints.NewTable(db)
	require.NoError(t, err)
	devs, err := devices.NewTable(db)
	require.NoError(t, err)
	fake := newFakeKernel()
	f := &follower{params{Config: Config{Enabled: true}, Kernel: fake, DB: db, Table: table, Endpoints: eps, Devices: devs,
		Record: newRecord(agentconfig.Agent{StateDir: t.TempDir()}, slog.New(slog.DiscardHandler))}}
	var paths []path
	var pods []*fakePod
	txn := db.WriteTxn(eps)
	for i := range 3 {
		fake.pods[uint64(10+i)] = &fakePod{host: 1500, link: 1500, routes: map[bool]int{false: 1450, true: 1450}}
		pods = append(pods, fake.pods[uint64(10+i)])
		_, _, err := eps.Insert(txn, &endpoints.Endpoint{ID: uint16(1 + i), NetnsPath: "/run/netns/pod", NetnsInode: uint64(10 + i), HostIfIndex: 100 + i,
			IPv4: netip.MustParseAddr("10.0.0.1"), IPv6: netip.MustParseAddr("fd00::1")})
		require.NoError(t, err)
	}
	txn.Commit()
	for _, from := range pods {
		for _, to := range pods {
			paths = append(paths, path{from, to, false}, path{from, to, true})
		}
	}
	require.NoError(t, f.Record.add(size{1500, 1450}))
	calls := 0
	for range 300 {
		device := []int{1280, 1400, 1450, 1500, 8950, 9000}[random.IntN(6)]
		want := sizeOf(mtus.MTU{DeviceMTU: device, RouteMTU: max(device-[]int{0, 50, 70}[random.IntN(3)], 1280)})
		require.NoError(t, f.Record.add(want))
		failing := pods[random.IntN(len(pods))]
		failing.failing = []string{"", "", "host", "link", "route"}[random.IntN(5)]
		fit, whole := map[path]int{}, map[path]bool{}
		for _, p := range paths {
			sent, arrives := p.fits()
			fit[p], whole[p] = min(sent, arrives), sent <= arrives && !p.ipv6
		}
		fake.check = func() {
			calls++
			for _, p := range paths {
				sent, arrives := p.fits()
				if p.from.failing != "" {
					arrives = p.from.host // its routes may stay unchanged; ends of links in pods receive packets that programs redirect to them
				}
				least := min(sent, fit[p])
				if whole[p] && p.from.failing == "" && p.to.failing == "" {
					least = sent
				}
				require.GreaterOrEqual(t, arrives, least, "want %+v: %+v sends to %+v: %s", want, p.from, p.to, fmt.Sprint(fake.order))
			}
		}
		fake.order = nil
		f.pass(t.Context(), db.ReadTxn(), want)
		failing.failing = ""
		if random.IntN(2) == 0 { // otherwise the next change arrives before this one is complete
			for _, p := range paths {
				sent, arrives := p.fits()
				fit[p], whole[p] = min(sent, arrives), sent <= arrives && !p.ipv6
			}
			f.pass(t.Context(), db.ReadTxn(), want)
			for _, p := range pods {
				require.Equal(t, []int{want.Device, want.Device, want.Route, want.Route}, []int{p.host, p.link, p.routes[false], p.routes[true]})
			}
			for row := range table.All(db.ReadTxn()) {
				require.Equal(t, podmtus.Follows, row.State, row.Detail)
			}
		}
	}
	require.NotZero(t, calls)
}
