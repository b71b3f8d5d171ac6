package ctgc

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
)

// strandedNode is a node with a pod that has one flow of each family under the node's address.
type strandedNode struct {
	*testing.T
	*access
	fake    *fakeKernel
	nodes   statedb.RWTable[nodeaddresses.Address]
	devices statedb.RWTable[devices.Address]
}

var strandedAddrs = []netip.Addr{netip.MustParseAddr("192.0.2.5"), netip.MustParseAddr("2001:db8::5")}

func newStrandedNode(t *testing.T) *strandedNode {
	t.Helper()
	db, fake := statedb.New(), newFake()
	nodes, err1 := nodeaddresses.NewTable(db)
	table, err2 := conntrack.NewTable(db)
	onDevices, err3 := devices.NewAddressTable(db)
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			t.Fatal(err)
		}
	}
	a := &strandedNode{T: t, fake: fake, nodes: nodes, devices: onDevices, access: &access{kernel: fake, nat: fakeNat{fake}, db: db, table: table,
		nodes: nodes, devices: onDevices, grace: addressGrace, signals: signalState{wake: make(chan struct{}, 1)}}}
	a.begin()
	return a
}

// begin stores the flows.
func (a *strandedNode) begin() {
	a.Helper()
	a.fake.mu.Lock()
	defer a.fake.mu.Unlock()
	_, err4 := a.fake.putPair([]string{"TCP", "to-outside", "10.1.0.7:1000", "198.51.100.1:53", "192.0.2.5:40000", "198.51.100.1:53", "from-outside",
		"endpoint=7", "masquerade=1"})
	_, err6 := a.fake.putPair([]string{"TCP", "to-outside", "[fd00::7]:1000", "[2001:db8:9::1]:443", "[2001:db8::5]:40000", "[2001:db8:9::1]:443",
		"from-outside", "endpoint=7", "masquerade=1"})
	if err4 != nil || err6 != nil {
		a.Fatal(err4, err6)
	}
}

// addAddrs adds the addresses to the node, goes removes them.
func (a *strandedNode) addAddrs()    { a.alter(a.nodes.Insert) }
func (a *strandedNode) removeAddrs() { a.alter(a.nodes.Delete) }

func (a *strandedNode) alter(do func(statedb.WriteTxn, nodeaddresses.Address) (nodeaddresses.Address, bool, error)) {
	txn := a.db.WriteTxn(a.nodes)
	defer txn.Commit()
	for _, addr := range strandedAddrs {
		if _, _, err := do(txn, nodeaddresses.Address{Addr: addr, Device: "eth0"}); err != nil {
			a.Error(err)
		}
	}
}

// want checks the number of remaining entries.
func (a *strandedNode) want(when string, entries int) {
	a.Helper()
	synctest.Wait()
	a.fake.mu.Lock()
	defer a.fake.mu.Unlock()
	if got := len(a.fake.nat); got != entries {
		a.Errorf("%s %d entries are left, want %d", when, got, entries)
	}
}

// limit is how long an address may be missing.
const limit = 10 * time.Second

// A device is reconfigured repeatedly: each time the address is missing for less than [limit], and connections stay. When it is removed permanently, they are
// deleted after that time, although other addresses are added and removed all the time.
func TestFollowNode_AddressBrieflyMissing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newStrandedNode(t)
		a.removeAddrs() // the agent starts while the address is missing
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		health, _ := cell.NewSimpleHealth()
		go func() { done <- a.followNode(ctx, health) }()
		for range 20 {
			time.Sleep(limit * 9 / 10)
			a.want("while the address is briefly missing", 4)
			a.addAddrs()
			time.Sleep(limit / 4)
			a.removeAddrs()
		}
		a.addAddrs()
		time.Sleep(10 * limit)
		a.want("when it is back", 4)

		a.removeAddrs()
		for range 9 {
			time.Sleep(limit / 10)
			txn := a.db.WriteTxn(a.nodes)
			if _, had, err := a.nodes.Delete(txn, nodeaddresses.Address{Addr: netip.MustParseAddr("192.0.2.9"), Device: "eth0"}); err != nil {
				t.Error(err)
			} else if !had {
				_, _, _ = a.nodes.Insert(txn, nodeaddresses.Address{Addr: netip.MustParseAddr("192.0.2.9"), Device: "eth0"})
			}
			txn.Commit()
			a.want("before the time is over", 4)
		}
		time.Sleep(limit)
		a.want("when it is gone for good", 0)
		a.begin() // by a program that does not know of the loss yet
		time.Sleep(lateAddresses + limit)
		a.want("of what began under it later", 0)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// After the link was down the IPv6 address is tentative: flows with it stay for the whole duplicate address detection, and are deleted when another host has
// the address. Changes of the links of pods cause no scan of the flows.
func TestFollowNode_AddressIsTentative(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newStrandedNode(t)
		a.addAddrs()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		health, _ := cell.NewSimpleHealth()
		go func() { done <- a.followNode(ctx, health) }()
		time.Sleep(10 * limit)
		six := devices.Address{LinkIndex: 2, Prefix: netip.PrefixFrom(strandedAddrs[1], 64), Tentative: true}
		put := func(row devices.Address) {
			txn := a.db.WriteTxn(a.devices)
			defer txn.Commit()
			if _, _, err := a.devices.Insert(txn, row); err != nil {
				t.Error(err)
			}
		}
		a.removeAddrs()
		time.Sleep(limit / 2)
		put(six)
		time.Sleep(10 * limit)
		a.want("while it is tentative, of the other family none, ", 2)

		looks := 0
		a.fake.reading = func() { looks++ }
		for i := range 100 {
			put(devices.Address{LinkIndex: 10 + i, Prefix: netip.MustParsePrefix("fe80::1/64"), Tentative: true})
			time.Sleep(limit / 5)
		}
		if looks > 0 {
			t.Errorf("%d looks at the flows because pods came", looks)
		}

		six.Duplicate = true
		put(six)
		time.Sleep(limit / 2)
		a.want("before the time is over", 2)
		time.Sleep(limit)
		a.want("when another host has the address", 0)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// The node gets an address during a sweep, and a program creates a flow with it at once.
func TestCollectStranded_AddressAddedDuringSweep(t *testing.T) {
	t.Parallel()
	a := newStrandedNode(t)
	own := &ownAddresses{table: a.nodes, devices: a.devices, grace: addressGrace}
	own.read(a.db.ReadTxn())
	a.fake.reading = a.addAddrs
	if ended, err := a.collectStranded(own.end); ended != 0 || err != nil || len(a.fake.nat) != 4 {
		t.Errorf("%d ended, %v; %d entries are left", ended, err, len(a.fake.nat))
	}
	a.fake.reading = a.removeAddrs
	if ended, err := a.collectStranded(own.end); ended != 0 || err != nil {
		t.Errorf("as soon as it is gone %d ended, %v", ended, err)
	}
}
