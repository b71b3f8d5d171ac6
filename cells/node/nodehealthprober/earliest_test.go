package nodehealthprober

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodetraffic"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// TestStart_SkippedScans_MissNoDueTarget changes nodes, their addresses and their traffic at random. No target becomes due before the time of the next scan, and
// a scan leaves no due target unless a limit is reached.
func TestStart_SkippedScans_MissNoDueTarget(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	synctest.Test(t, func(t *testing.T) {
		const number = 30
		net := newFake()
		r := newRig(t, net, number)
		require.NoError(t, r.subscribe())
		defer r.rows.Close()
		defer r.running.Wait()
		skipped, started := 0, 0
		for range 3000 {
			i := 1 + random.IntN(number-1)
			switch random.IntN(6) {
			case 0:
				txn := r.db.WriteTxn(r.nodes)
				row := &nodes.Node{Name: nameOf(i), Addresses: []nodes.Address{{Type: nodes.InternalIP, Addr: addressOf(100*random.IntN(3) + i)}}}
				write := r.nodes.Insert
				switch random.IntN(6) {
				case 0:
					write = r.nodes.Delete
				case 1:
					row.Addresses[0].Addr = netip.MustParseAddr("2001:db8::1") // no address that can be probed
				}
				_, _, err := write(txn, row)
				require.NoError(t, err)
				txn.Commit()
			case 1:
				row := recentTraffic(i)
				row.IPv4.Unanswered = random.IntN(2)
				r.insertTraffic(t, row)
			case 2:
				txn := r.db.WriteTxn(r.traffic)
				_, _, err := r.traffic.Delete(txn, &nodetraffic.Traffic{Node: nameOf(i)})
				require.NoError(t, err)
				txn.Commit()
			case 3:
				net.set(addressOf(i), wrong{echo: []error{nil, errSilence}[random.IntN(2)]})
			default:
				time.Sleep(time.Duration(random.Int64N(int64(30 * time.Second))))
			}
			txn := r.db.ReadTxn()
			var u update
			r.absorb(&u)
			r.follow(txn, statedb.NewWatchSet(), true, &u)
			r.applyTraffic(txn, &u)
			require.NoError(t, r.commit(u, true))
			if time.Now().Before(r.earliest) {
				skipped++
			}
			before := r.busy
			r.start(t.Context())
			if r.busy > before {
				started++
			}
			if !time.Now().Before(r.earliest) {
				continue // the next round scans
			}
			for _, target := range r.targets {
				if !target.busy && target.due.Before(r.earliest) {
					t.Fatalf("%s is due %v before the next scan", target.name, r.earliest.Sub(target.due))
				}
			}
		}
		require.NotZero(t, skipped)
		require.NotZero(t, started)
	})
}
