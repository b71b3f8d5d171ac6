package ctgc

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/backendcheck"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/tables/natusage"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/testnet"
)

func realMaps(t testing.TB) celltest.Maps {
	t.Helper()
	testnet.RequirePrivileges(t)
	specs, err := bpf.MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	all := celltest.Maps{}
	for _, name := range []string{bpf.MapCtEst4, bpf.MapCtEst6, bpf.MapCtNew4, bpf.MapCtNew6, bpf.MapCtBurst4, bpf.MapCtBurst6, bpf.MapCtFlows, bpf.MapCtSignals,
		bpf.MapNat4, bpf.MapNat6, bpf.MapNatFlows, bpf.MapNatTotals, bpf.MapAffinity} {
		specs[name].MaxEntries = scaled(specs[name].MaxEntries)
		if all[name], err = ebpf.NewMap(specs[name]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = all[name].Close() })
	}
	return all
}

func realCollector(t testing.TB, maps pinnedmaps.Copies, eps ...*endpoints.Endpoint) *collector {
	t.Helper()
	return collectorOf(t, newKernel(maps), newNatKernel(maps), eps...)
}

func collectorOf(t testing.TB, k kernel, nat natKernel, eps ...*endpoints.Endpoint) *collector {
	t.Helper()
	db := statedb.New()
	table, err1 := conntrack.NewTable(db)
	all, err2 := endpoints.NewTable(db)
	addresses, err3 := ipamaddresses.NewTable(db)
	usage, err4 := natusage.NewTable(db)
	fronts, err5 := frontends.NewTable(db)
	backs, err6 := backends.NewTable(db)
	nodes, err7 := nodeaddresses.NewTable(db)
	named, err8 := services.NewTable(db)
	exclusions, err9 := masquerade.NewExclusionTable(db)
	cache, err10 := ipcache.NewTable(db)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, err8, err9, err10); err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(all)
	for _, ep := range eps {
		if _, _, err := all.Insert(txn, ep); err != nil {
			t.Fatal(err)
		}
	}
	txn.Commit()
	c, err := newCollector(DefaultConfig, newAccess(params{Settings: agentconfig.Agent{EndpointShare: 25}, Kernel: k, Nat: nat, DB: db, Table: table,
		Usage: usage, Endpoints: all, Addresses: addresses, Nodes: nodes, Exclusions: exclusions, Serving: backendcheck.Tables{Services: named, Frontends: fronts, Backends: backs, IPCache: cache}}))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var pods = []*endpoints.Endpoint{
	{ID: 7, ContainerID: "a", IPv4: netip.MustParseAddr("10.1.0.7"), IPv6: netip.MustParseAddr("fd00::7")},
	{ID: 8, ContainerID: "b", IPv4: netip.MustParseAddr("10.1.0.8"), IPv6: netip.MustParseAddr("fd00::8")},
}

// fill stores n flows from an endpoint to the world in a map, each modified by change.
func fill(t testing.TB, m celltest.Maps, name string, n int, from *endpoints.Endpoint, change func(i int, e *bpf.CtEntry)) {
	t.Helper()
	now, err := bpf.CtNow()
	if err != nil {
		t.Fatal(err)
	}
	var keys4 []bpf.CtKey4
	var keys6 []bpf.CtKey6
	values := make([]bpf.CtEntry, n)
	for i := range n {
		initiator, target := from.IPv4, netip.AddrFrom4([4]byte{192, 0, byte(i >> 24), byte(i >> 16)})
		if name == bpf.MapCtEst6 || name == bpf.MapCtNew6 {
			initiator, target = from.IPv6, netip.AddrFrom16([16]byte(binary.BigEndian.AppendUint64([]byte{0x20, 1, 0xd, 0xb8, 0, 0, 0, 0}, uint64(i))))
		}
		key, second := ctmap.KeyOf(bpf.CtFlow{Initiator: netip.AddrPortFrom(initiator, uint16(i)), Responder: netip.AddrPortFrom(target, 443),
			Protocol: unix.IPPROTO_TCP})
		values[i] = bpf.CtEntry{Check: 1, Created: now, Expires: now + 5000, Initiator: from.ID, Flags: bpf.CtEstablished}
		if second {
			values[i].Flags |= bpf.CtInitiatorSecond
		}
		change(i, &values[i])
		keys4, keys6 = append(keys4, key.V4), append(keys6, key.V6)
	}
	var keys any = keys4
	if name == bpf.MapCtEst6 || name == bpf.MapCtNew6 {
		keys = keys6
	}
	if got, err := m[name].BatchUpdate(keys, values, nil); err != nil || got != n {
		t.Fatalf("put %d flows into %s: %d, %v", n, name, got, err)
	}
}

// mapSize is the size of the maps of established flows.
var mapSize = int(scaled(131072))

// scaled returns the size of a map, or a sixteenth of it on an emulated CPU, which is still several slices of a pass. Small maps keep their size.
func scaled(size uint32) uint32 {
	if testnet.Emulated() && size >= 32*slice {
		return size / 16
	}
	return size
}

// A pass over a full map works in slices: it deletes dead flows, keeps the others, and the quotas count the remaining flows.
func TestPrivilegedPass_FullMapsInSlices(t *testing.T) {
	t.Parallel()
	maps := realMaps(t)
	gone := &endpoints.Endpoint{ID: 9, IPv4: netip.MustParseAddr("10.1.0.9"), IPv6: netip.MustParseAddr("fd00::9")}
	for _, name := range []string{bpf.MapCtEst4, bpf.MapCtEst6} {
		fill(t, maps, name, mapSize/2, pods[0], func(i int, e *bpf.CtEntry) {
			if i%2 == 0 {
				e.Expires = e.Created
			}
		})
		fill(t, maps, name, mapSize/4, pods[1], func(int, *bpf.CtEntry) {})
		fill(t, maps, name, mapSize/4, gone, func(int, *bpf.CtEntry) {})
	}
	if err := maps[bpf.MapCtFlows].Put(uint32(8), int32(-3)); err != nil {
		t.Fatal(err)
	}
	c := realCollector(t, maps, pods...)
	p := &pass{access: c.access, pause: calmPause}
	before, begin := cpuTime(t), time.Now()
	if err := p.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("a pass over %d flows that deleted half of them took %s, %s of CPU", 2*mapSize, time.Since(begin), cpuTime(t)-before)
	for _, name := range []string{bpf.MapCtEst4, bpf.MapCtEst6} {
		f := p.found[name]
		if f.entries != uint64(mapSize)/2 || f.expired != uint64(mapSize)/4 || f.orphaned != uint64(mapSize)/4 || f.took < calmPause*time.Duration(mapSize/slice-1) {
			t.Errorf("%s: found %+v", name, f)
		}
	}
	counts, err := c.kernel.Counts()
	if err != nil {
		t.Fatal(err)
	}
	all, half := uint32(mapSize), uint32(mapSize/2)
	for id, n := range counts {
		if want := map[int]uint32{0: all - 2*ctmap.Guarantee(all), 7: half, 8: half}[id]; n != want {
			t.Errorf("endpoint %d has %d flows, want %d", id, n, want)
		}
	}
	// The second pass deletes nothing; its CPU time is the cost of the collector without dead flows.
	before, begin = cpuTime(t), time.Now()
	p = &pass{access: c.access, pause: calmPause}
	if err := p.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	used := cpuTime(t) - before
	t.Logf("a pass over %d flows that deleted none took %s, %s of CPU: %.4f %% of a core every %s", mapSize, time.Since(begin), used,
		100*used.Seconds()/firstInterval.Seconds(), firstInterval)
	if f := p.found[bpf.MapCtEst4]; f.entries != uint64(mapSize)/2 || f.expired+f.orphaned != 0 {
		t.Errorf("the second pass found %+v", f)
	}
}

// cpuTime returns the CPU time of this process.
func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// A packet that renews a flow between its look-up and its deletion keeps it.
func TestPrivilegedDelete_RenewedFlow_IsKept(t *testing.T) {
	t.Parallel()
	maps := realMaps(t)
	fill(t, maps, bpf.MapCtEst6, 1, pods[0], func(int, *bpf.CtEntry) {})
	k := newKernel(maps)
	m := ctmap.Map{Name: bpf.MapCtEst6, IPv6: true, Established: true}
	r, capacity, err := k.Read(m)
	if err != nil || capacity != uint32(mapSize) {
		t.Fatal(capacity, err)
	}
	flows, last, err := r.Next()
	if err != nil || !last || len(flows) != 1 {
		t.Fatal(flows, last, err)
	}
	for _, tc := range []struct {
		dead, deleted bool
	}{{false, false}, {true, true}, {true, false}} { // in the last case the entry no longer exists
		deleted, err := k.Delete(m, &flows[0].Key, func(*bpf.CtEntry) bool { return tc.dead })
		if err != nil || deleted != tc.deleted {
			t.Errorf("%+v: deleted %v, %v", tc, deleted, err)
		}
	}
}

// A map and the copy of a resized map lose an entry by their own expiry: programs of two generations renew the same flow in only one of them.
func TestPrivilegedDelete_ResizedMap(t *testing.T) {
	t.Parallel()
	const over, lasts = 1, 1 << 30
	for name, c := range map[string]struct{ present, copy uint32 }{
		"both are over": {over, over}, "the copy lives": {over, lasts}, "the map's lives": {lasts, over},
	} {
		maps := realMaps(t)
		maps[celltest.CopyOf+bpf.MapCtEst4] = realMaps(t)[bpf.MapCtEst4]
		fill(t, maps, bpf.MapCtEst4, 1, pods[0], func(_ int, e *bpf.CtEntry) { e.Expires = c.present })
		fill(t, maps, celltest.CopyOf+bpf.MapCtEst4, 1, pods[0], func(_ int, e *bpf.CtEntry) { e.Expires = c.copy })
		k := newKernel(maps)
		m := ctmap.Map{Name: bpf.MapCtEst4, Established: true}
		r, _, err := k.Read(m)
		if err != nil {
			t.Fatal(err)
		}
		flows, _, err := r.Next()
		if err != nil || len(flows) != 1 {
			t.Fatal(flows, err)
		}
		deleted, err := k.Delete(m, &flows[0].Key, func(e *bpf.CtEntry) bool { return e.Expires == over })
		if err != nil || deleted != (c.present == over) {
			t.Errorf("%s: deleted %v, %v", name, deleted, err)
		}
		for of, expires := range map[string]uint32{bpf.MapCtEst4: c.present, celltest.CopyOf + bpf.MapCtEst4: c.copy} {
			var entry bpf.CtEntry
			if err := maps[of].Lookup(flows[0].Key.Value(), &entry); errors.Is(err, ebpf.ErrKeyNotExist) != (expires == over) {
				t.Errorf("%s: the entry of %s: %v", name, of, err)
			}
		}
	}
}

// BenchmarkPass measures one pass over maps of both families, empty and full.
func BenchmarkPass(b *testing.B) {
	for _, flows := range []int{0, mapSize} {
		b.Run(strconv.Itoa(2*flows), func(b *testing.B) {
			maps := realMaps(b)
			for _, name := range []string{bpf.MapCtEst4, bpf.MapCtEst6} {
				if flows > 0 {
					fill(b, maps, name, flows, pods[0], func(int, *bpf.CtEntry) {})
				}
			}
			c := realCollector(b, maps, pods...)
			for b.Loop() {
				if err := (&pass{access: c.access}).run(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
