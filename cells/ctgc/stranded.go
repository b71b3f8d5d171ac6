package ctgc

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/natmap"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
)

// ownAddresses are those of this node; nil until all are known.
type ownAddresses map[netip.Addr]struct{}

func readOwnAddresses(txn statedb.ReadTxn, table statedb.Table[nodeaddresses.Address]) (own ownAddresses, changed <-chan struct{}) {
	known, initialized := table.Initialized(txn)
	if !known {
		return nil, initialized
	}
	all, changed := table.AllWatch(txn)
	own = make(ownAddresses)
	for row := range all {
		own[row.Addr] = struct{}{}
	}
	return own, changed
}

// strands tells whether a flow leaves the node under an address that is its no more: no answer comes back to it.
func (own ownAddresses) strands(f *natmap.Flow) bool {
	if f.Flags&uint32(bpf.NatMasquerade|bpf.NatRedirect) == 0 {
		return false
	}
	addr := f.Becomes().Source.Addr()
	if f.Reply() {
		addr = f.Key.Tuple().Target.Addr()
	}
	_, has := own[addr]
	return !has
}

// followNode ends translated flows whose address the node has lost, so that what is sent next gets another one. Programs learn of
// the loss at the same time, so it looks again a little later.
func (c *collector) followNode(ctx context.Context, health cell.Health) error {
	health.OK("Waiting for the addresses of the node")
	var last ownAddresses
	var late []time.Duration
	for {
		own, changed := readOwnAddresses(c.db.ReadTxn(), c.nodes)
		heartbeat.Busy(ctx)
		if own != nil && (last == nil || !maps.Equal(own, last)) {
			last, late = own, append([]time.Duration{0}, lateSweeps...)
		}
		var timer <-chan time.Time
		if len(late) > 0 {
			timer = time.After(late[0])
		}
		heartbeat.Idle(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			continue
		case <-timer:
			late = late[1:]
		}
		heartbeat.Busy(ctx)
		ended, err := c.collectStranded(last)
		if err != nil {
			return fmt.Errorf("collect flows under addresses that the node has lost: %w", err)
		}
		health.OK(fmt.Sprintf("The node has %d addresses; %d entries of flows under others ended", len(last), ended))
	}
}

// collectStranded tells how many entries it deleted.
func (c *collector) collectStranded(own ownAddresses) (ended uint64, err error) {
	p := &pass{collector: c}
	for _, m := range natmap.Maps() {
		r, _, err := c.nat.ReadNat(m)
		if err != nil {
			return ended, err
		}
		deleted := uint64(0)
		for last := false; !last; {
			var flows []natmap.Flow
			if flows, last, err = r.Next(); err != nil {
				return ended, err
			}
			for i := range flows {
				if !own.strands(&flows[i]) {
					continue
				}
				n, err := p.deletePair(&flows[i], own.strands)
				deleted += n
				if err != nil {
					return ended, err
				}
			}
		}
		c.publishStranded(m.Name, deleted)
		ended += deleted
	}
	if ended > 0 {
		c.heard.hurry() // a pass corrects the shares
	}
	return ended, nil
}

// publishStranded counts what was deleted of a map.
func (c *collector) publishStranded(name string, n uint64) {
	if n == 0 {
		return
	}
	txn := c.db.WriteTxn(c.table)
	defer txn.Commit()
	row, _, _ := c.table.Get(txn, conntrack.ByName(name))
	row.Name = name
	row.Orphaned += n
	_, _, _ = c.table.Insert(txn, row)
}
