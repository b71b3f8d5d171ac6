package pathtest

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// A fault of the direct path is named within 30 s of a join, with and without a tunnel beside it. The end of the fault is noticed.
func TestTester_Join_NotDirectIsNamedWithin30s(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode  func(*agentconfig.Agent)
		fault wrong
	}{"native": {native, wrong{silent: true}}, "hybrid": {hybrid, wrong{past: true}}} {
		for _, number := range []int{1, 3, 5000} {
			synctest.Test(t, func(t *testing.T) {
				const joining = 8
				r := start(t, number, c.mode)
				time.Sleep(time.Minute)
				for i := number; i < number+joining; i++ {
					r.net.set(inner(i), c.fault)
					r.join(t, i)
				}
				time.Sleep(named)
				for i := number; i < number+joining; i++ {
					if got := r.path(i).Text(); got != "not-direct" {
						t.Errorf("%s, %d nodes: the path to %s is %q %v after a join, want not-direct", name, number, nameOf(i), got, named)
					}
					r.net.set(inner(i), wrong{})
				}
				for i := number; i < number+joining; i++ {
					r.await(t, i, "ok")
				}
			})
		}
	}
}

// Only this node's packets are lost: this is named within 30 s of a join, whenever within [joinSpread] the new node begins to test this node.
func TestTester_Join_OneWayIsNamedWithin30s(t *testing.T) {
	t.Parallel()
	for _, number := range []int{1, 3, 5000} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, number)
			time.Sleep(time.Minute)
			router := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}) }
			const joining = int(joinSpread/time.Second) + 1
			txn := r.db.WriteTxn(r.nodes)
			for i := number; i < number+joining; i++ {
				r.net.set(inner(i), wrong{silent: true})
				n := nodeOf(i)
				n.Addresses = append(n.Addresses, nodes.Address{Type: nodes.CiliumInternalIP, Addr: router(i)})
				_, _, err := r.nodes.Insert(txn, n)
				require.NoError(t, err)
			}
			txn.Commit()
			for began := time.Now(); time.Since(began) < named; time.Sleep(time.Second) {
				for first := range joining { // without replies, the peer tests until it has a verdict, and then at failedInterval
					switch time.Since(began) - time.Duration(first)*time.Second {
					case 0, freshInterval, 2 * freshInterval, 2*freshInterval + failedInterval:
						r.net.hear(router(number + first))
					}
				}
			}
			for first := range joining {
				if got := r.path(number + first).Text(); got != "one-way" {
					t.Errorf("%d nodes: the path to a node that first tests this node after %d s is %q %v after a join, want one-way", number, first, got, named)
				}
			}
		})
	}
}
