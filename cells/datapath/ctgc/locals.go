package ctgc

import (
	"net/netip"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// locals are the endpoints of this node by id, in one snapshot of the table.
type locals struct {
	byID    map[uint16]addresses
	changed <-chan struct{} // closed when the table changes
}

type addresses struct{ ipv4, ipv6 netip.Addr }

// readLocals returns nil until all endpoints are known.
func readLocals(txn statedb.ReadTxn, table statedb.Table[*endpoints.Endpoint]) *locals {
	if known, _ := table.Initialized(txn); !known {
		return nil
	}
	all, changed := table.AllWatch(txn)
	l := &locals{byID: make(map[uint16]addresses, table.NumObjects(txn)), changed: changed}
	for ep := range all {
		l.byID[ep.ID] = addresses{ep.IPv4, ep.IPv6}
	}
	return l
}

// open reports whether a channel that a change closes is still open.
func open(changed <-chan struct{}) bool {
	select {
	case <-changed:
		return false
	default:
		return true
	}
}

// orphan reports whether one end of a flow is a removed endpoint. A new endpoint may have the id of a removed one, but not its address, which is quarantined.
func (l *locals) orphan(f *ctmap.Flow) bool {
	if f.Entry.Initiator == 0 && f.Entry.Responder == 0 {
		return false
	}
	t := f.Tuple()
	return l.gone(f.Entry.Initiator, t.Initiator.Addr()) || l.gone(f.Entry.Responder, t.Responder.Addr())
}

func (l *locals) gone(id uint16, addr netip.Addr) bool {
	if id == 0 {
		return false
	}
	a, found := l.byID[id]
	return !found || a.ipv4 != addr && a.ipv6 != addr
}

// lost reports whether an endpoint of l is missing in now, or has other addresses there.
func (l *locals) lost(now *locals) bool {
	for id, a := range l.byID {
		if now.byID[id] != a {
			return true
		}
	}
	return false
}
