package endpointmaps

import (
	"fmt"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
)

// initializers complete the tables. Only the first call of each has an effect.
type initializers struct {
	endpoints func(statedb.WriteTxn) // all rows of endpoints are written; the transaction must hold the three tables
	hosts     func(statedb.WriteTxn) // the first set of the node's addresses is written
}

func newInitializers(
	db *statedb.DB, facts statedb.RWTable[*bpfendpoints.Facts],
	links statedb.RWTable[*bpfendpoints.Link], addresses statedb.RWTable[*bpfendpoints.Address],
) *initializers {
	txn := db.WriteTxn(facts, links, addresses)
	defer txn.Commit()
	const name = "endpoints"
	f, l, a := facts.RegisterInitializer(txn, name), links.RegisterInitializer(txn, name), addresses.RegisterInitializer(txn, name)
	return &initializers{
		endpoints: func(txn statedb.WriteTxn) { f(txn); l(txn); a(txn) },
		hosts:     addresses.RegisterInitializer(txn, bpfendpoints.HostInitializer),
	}
}

// hostWriter implements [bpfendpoints.HostWriter].
type hostWriter struct {
	db    *statedb.DB
	table statedb.RWTable[*bpfendpoints.Address]
	init  *initializers
}

func newHostWriter(db *statedb.DB, table statedb.RWTable[*bpfendpoints.Address], init *initializers) bpfendpoints.HostWriter {
	return &hostWriter{db, table, init}
}

// ReplaceHost implements [bpfendpoints.HostWriter].
func (w *hostWriter) ReplaceHost(owner string, addrs []netip.Addr) error {
	if owner == "" || owner == endpointOwner {
		return fmt.Errorf("replace host addresses: owner %q is reserved", owner)
	}
	txn := w.db.WriteTxn(w.table)
	defer txn.Abort()
	want := make(map[netip.Addr]*bpfendpoints.Address, len(addrs))
	var conflicts []netip.Addr
	for _, addr := range addrs {
		if row, _, found := w.table.Get(txn, bpfendpoints.AddressByAddr(addr)); found && row.Owner != owner {
			if row.Owner == endpointOwner {
				conflicts = append(conflicts, addr)
			}
			continue // another owner has the same address
		}
		want[addr] = &bpfendpoints.Address{Addr: addr, Host: true, Owner: owner, Status: reconciler.StatusPending()}
	}
	if err := rows.Replace(txn, w.table, w.table.List(txn, bpfendpoints.AddressByOwner(owner)), want, addrOf, rows.Same); err != nil {
		return err
	}
	w.init.hosts(txn)
	txn.Commit()
	if len(conflicts) > 0 {
		return fmt.Errorf("replace host addresses of %s: endpoints have %v", owner, conflicts)
	}
	return nil
}

func addrOf(a *bpfendpoints.Address) netip.Addr { return a.Addr }
