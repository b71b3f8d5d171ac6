package nodemaps

import (
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/mapreconciler"
	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

type verifyParams struct {
	cell.In

	Watch      drift.Watch
	Table      statedb.RWTable[*nodeslots.Slot]
	Kernel     kernel
	Ops        *ops
	Reconciler reconciler.Reconciler[*nodeslots.Slot]
}

// registerVerify compares the maps with their rows on a timer.
func registerVerify(jobs job.Group, p verifyParams) {
	check := mapreconciler.Check[*nodeslots.Slot, uint16, state]{
		Watch: p.Watch, Name: bpf.MapNodes, Table: p.Table, Dump: p.Kernel.Dump, Differs: p.Ops.differs, Prune: p.Reconciler.Prune,
		Key: func(s *nodeslots.Slot) uint16 { return s.ID },
	}
	watchdog.AddTimer(jobs, "verify-node-maps", check.Run, p.Watch.Interval)
}

// differs describes how the map entries of a node differ from its row; "" when they do not.
func (o *ops) differs(have map[uint16]state, s *nodeslots.Slot) string {
	is := have[s.ID]
	same := is.slot == slotOf(s) && len(is.addrs) == len(s.Addrs)
	for _, addr := range s.Addrs {
		same = same && slices.Contains(is.addrs, addr)
	}
	if !same {
		o.stale.Store(true)
	}
	return mapreconciler.Difference(s.ID, true, same)
}
