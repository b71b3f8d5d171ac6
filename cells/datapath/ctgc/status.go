package ctgc

import (
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/natusage"
)

// publish writes the table conntrack, and with [access.publishUsage] the table nat-usage.
func (a *access) publish(p *pass) {
	txn := a.db.WriteTxn(a.table, a.usage)
	defer txn.Commit()
	for _, name := range conntrack.Maps() {
		row, _, _ := a.table.Get(txn, conntrack.ByName(name))
		f := p.found[name]
		row.Name, row.Entries, row.MaxEntries, row.Took = name, f.entries, f.capacity, f.took
		row.Expired += f.expired
		row.Orphaned += f.orphaned
		row.Unserved += f.unserved
		signals := a.signals.counts(name)
		row.Full, row.Share = signals.full, signals.share
		if p.known != nil {
			row.Began = p.began
		}
		_, _, _ = a.table.Insert(txn, row)
	}
	a.publishUsage(txn, p)
}

// publishUsage writes a row for each endpoint with translated flows or denied translations.
func (a *access) publishUsage(txn statedb.WriteTxn, p *pass) {
	rejected := a.signals.rejections()
	for id := range p.translations.endpoints {
		if _, found := rejected[id]; !found {
			rejected[id] = 0
		}
	}
	delete(rejected, 0) // no endpoint
	want := make(map[uint16]natusage.Usage, len(rejected))
	for id, n := range rejected {
		ep, _, found := a.endpoints.Get(txn, endpoints.ByID(id))
		if !found {
			a.signals.forget(id)
			continue
		}
		flows := p.translations.endpoints[id]
		want[id] = natusage.Usage{Endpoint: id, Pod: ep.PodName(), IPv4: flows.Ipv4, IPv6: flows.Ipv6, Refused: n, Percent: used(flows,
			natmap.Share(p.found[bpf.MapNat4].capacity, a.percent), natmap.Share(p.found[bpf.MapNat6].capacity, a.percent))}
	}
	_ = rows.Replace(txn, a.usage, a.usage.All(txn), want, func(row natusage.Usage) uint16 { return row.Endpoint }, rows.Identical)
}

// used returns the used part of an endpoint's quota in percent, in the family with the larger part.
func used(flows bpf.NatCount, share4, share6 uint32) int {
	of := func(n int32, share uint32) int { return int(100 * uint64(max(n, 0)) / uint64(share)) }
	return max(of(flows.Ipv4, share4), of(flows.Ipv6, share6))
}

// publishFlushed adds the entries that an operator has deleted to the counters.
func (a *access) publishFlushed(of map[string]uint64) {
	txn := a.db.WriteTxn(a.table)
	defer txn.Commit()
	for name, n := range of {
		row, _, _ := a.table.Get(txn, conntrack.ByName(name))
		row.Name = name
		row.Flushed += n
		_, _, _ = a.table.Insert(txn, row)
	}
}

// publishStranded adds the deleted entries of a map to the counters, and requests a pass that corrects the quotas.
func (a *access) publishStranded(name string, n uint64) {
	if n == 0 {
		return
	}
	txn := a.db.WriteTxn(a.table)
	row, _, _ := a.table.Get(txn, conntrack.ByName(name))
	row.Name = name
	row.Orphaned += n
	_, _, _ = a.table.Insert(txn, row)
	txn.Commit()
	a.signals.hurry()
}

// publishSwept adds the entries that sweeps have deleted to the counters, and requests a pass that corrects the quotas.
func (a *access) publishSwept(of map[string]found) {
	some := false
	txn := a.db.WriteTxn(a.table)
	defer txn.Abort()
	for name, f := range of {
		if f.unserved == 0 {
			continue
		}
		some = true
		row, _, _ := a.table.Get(txn, conntrack.ByName(name))
		row.Name = name
		row.Unserved += f.unserved
		_, _, _ = a.table.Insert(txn, row)
	}
	txn.Commit()
	if some {
		a.signals.hurry()
	}
}
