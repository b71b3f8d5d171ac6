package nodeidallocator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/conntrack"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// settle is the minimum interval between two rounds. A single change is not delayed.
const settle = 20 * time.Millisecond

type params struct {
	cell.In
	DB       *statedb.DB
	Log      *slog.Logger
	Settings agentconfig.Agent
	Table    statedb.RWTable[*nodeids.NodeID]
	Nodes    statedb.Table[*nodes.Node]
	Flows    statedb.Table[conntrack.Map]
	Kernel   kernel
}

// controller follows the changes of the table nodes. A round processes only changed nodes, removed nodes whose ids are not freed yet, and nodes without an id.
type controller struct {
	params
	initialized func(statedb.WriteTxn)
	files       files
	restored    bool
	nodes       *clusternodes.Rows
	taken       *taken                // nil: the next round processes all nodes
	addrs       map[netip.Addr]uint16 // ids by the addresses that the previous run left in node_addrs
	complete    bool                  // the table nodes was complete in the last round
	touched     map[string]struct{}   // nodes that changed since the last round that was committed
	released    map[string]struct{}   // removed nodes whose ids are not freed yet, and rows of reserved ids
	without     map[string]struct{}   // nodes without an id, because all are in use
	missing     []int                 // numbers of the files that the next round must write
}

func newController(p params) *controller {
	txn := p.DB.WriteTxn(p.Table)
	defer txn.Commit()
	return &controller{params: p, initialized: p.Table.RegisterInitializer(txn, "nodeids"), files: newFiles(p.Settings), touched: map[string]struct{}{},
		released: map[string]struct{}{}, without: map[string]struct{}{}}
}

func registerController(jobs job.Group, p params) {
	watchdog.AddRetried(jobs, "assign-node-ids", newController(p).run, 100*time.Millisecond, time.Minute)
}

func (c *controller) run(ctx context.Context, health cell.Health) error {
	if err := errors.Join(c.restore(), c.subscribe()); err != nil {
		health.Degraded("restore ids", err)
		return err
	}
	watched := []statedb.TableMeta{c.Nodes} // without the table of the collector, which begins a round only while an id is released or reserved
	err := loop.Run(ctx, c.DB, loop.Options{Tables: watched, Pause: settle}, func(r *loop.Round) error {
		if err := c.round(r.Txn, r.Changed); err != nil {
			health.Degraded("assign ids", err)
			c.taken = nil
			return err
		}
		if n := len(c.without); n > 0 {
			health.Degraded("assign ids", fmt.Errorf("%d nodes get no id, because all %d are in use: their pods are unreachable; the first is %s",
				n, nodeids.Max, slices.Min(slices.Collect(maps.Keys(c.without)))))
		} else {
			health.OK(fmt.Sprintf("%d nodes", c.Table.NumObjects(c.DB.ReadTxn())))
		}
		return nil
	})
	if err == nil {
		c.nodes.Close()
	}
	return err
}

// restore fills the table from the files, and reserves other ids that the maps have, once.
func (c *controller) restore() error {
	if c.restored {
		return nil
	}
	addrs, err1 := c.Kernel.Addrs()
	named, err2 := c.Kernel.Named()
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("read the ids in the maps: %w", err)
	}
	rows, missing, err := c.files.read(c.Log, time.Now())
	if err != nil {
		return err
	}
	for _, row := range reserve(rows, addrs, named) {
		rows, missing = append(rows, row), append(missing, numberOf(row.ID))
	}
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	for _, row := range rows {
		if _, _, err := c.Table.Insert(txn, row); err != nil {
			return fmt.Errorf("restore the id of node %s: %w", row.Name, err)
		}
	}
	txn.Commit()
	c.restored, c.missing, c.addrs = true, missing, addrs
	return nil
}

// subscribe starts to follow the changes of nodes. After an error of run, the next run continues with the same change iterator.
func (c *controller) subscribe() (err error) {
	if c.nodes == nil {
		txn := c.DB.WriteTxn(c.Nodes)
		defer txn.Commit()
		c.nodes, err = clusternodes.FollowRows(txn, c.Nodes)
	}
	return err
}

// round assigns and frees ids. After an error [controller.taken] must be nil.
func (c *controller) round(txn statedb.ReadTxn, changed *statedb.WatchSet) error {
	complete := changefeed.Watch(txn, changed, c.Nodes)
	some := c.some(txn, changed, complete)
	var have []*nodeids.NodeID
	var want []*nodes.Node
	for name := range some {
		if row, _, found := c.Table.Get(txn, nodeids.ByName(name)); found {
			have = append(have, row)
		}
		if n := c.nodes.All()[name]; n != nil {
			want = append(want, n)
		}
	}
	var readError error
	next := c.taken.assign(have, want, complete, time.Now(), c.unused(txn, &readError))
	if err := errors.Join(c.commit(txn, have, next, complete), readError); err != nil {
		return err
	}
	for name := range some {
		delete(c.released, name)
		delete(c.without, name)
		if row := next.byName[name]; row != nil && (!row.Released.IsZero() || isReserved(row)) {
			c.released[name] = struct{}{}
		}
	}
	for _, name := range next.without {
		c.without[name] = struct{}{}
	}
	c.touched, c.complete = map[string]struct{}{}, complete
	if len(c.released) > 0 { // nothing else depends on the collector, which writes every few seconds
		changefeed.Watch(txn, changed, c.Flows)
	}
	return nil
}

// some returns the names of the nodes that a round processes: all nodes in the first round, after an error and when the table nodes becomes complete.
func (c *controller) some(txn statedb.ReadTxn, changed *statedb.WatchSet, complete bool) map[string]struct{} {
	c.nodes.UpTo(txn, changed, func(before, after *nodes.Node) {
		for _, n := range []*nodes.Node{before, after} {
			if n != nil {
				c.touched[n.Name] = struct{}{}
			}
		}
	})
	if c.taken != nil && complete == c.complete {
		some := maps.Clone(c.touched)
		maps.Copy(some, c.released)
		maps.Copy(some, c.without)
		return some
	}
	rows := statedb.Collect(c.Table.All(txn))
	c.taken = newTaken(rows)
	c.taken.addrs = c.addrs
	some := make(map[string]struct{}, len(rows))
	for _, row := range rows {
		some[row.Name] = struct{}{}
	}
	for name := range c.nodes.All() {
		some[name] = struct{}{}
	}
	return some
}

// unused returns a function that reports whether neither entries of flows nor entries of ipcache contain a released id. ipcache is read at most once, and only
// when no flow contains the id. After a read error, which readError receives, an id counts as used.
func (c *controller) unused(txn statedb.ReadTxn, readError *error) func(*nodeids.NodeID) bool {
	var named map[uint16]bool
	return func(row *nodeids.NodeID) bool {
		if !conntrack.PassedSince(txn, c.Flows, row.Released) {
			return false
		}
		if named == nil && *readError == nil {
			named, *readError = c.Kernel.Named()
		}
		return *readError == nil && !named[row.ID]
	}
}

// commit writes the files, then the table, so that maps never contain an id that the next run could assign to another node. If the files cannot be written, the
// rows stay unchanged, and the table still becomes complete.
func (c *controller) commit(now statedb.ReadTxn, have []*nodeids.NodeID, next assigned, complete bool) error {
	numbers := map[int]struct{}{}
	for _, number := range c.missing {
		numbers[number] = struct{}{}
	}
	var put, remove []*nodeids.NodeID
	had := make(map[string]*nodeids.NodeID, len(have))
	for _, row := range have {
		if had[row.Name] = row; next.byName[row.Name] == nil {
			remove = append(remove, row)
			numbers[numberOf(row.ID)] = struct{}{}
		}
	}
	for name, row := range next.byName {
		if had[name] != row { // an unchanged row is the same pointer
			put = append(put, row)
			numbers[numberOf(row.ID)] = struct{}{}
		}
	}
	writeError := c.files.write(c.lists(now, numbers, had, next))
	done, _ := c.Table.Initialized(now)
	c.missing = nil
	if writeError != nil { // some of the files may be newer than the table
		c.missing, put, remove = slices.Collect(maps.Keys(numbers)), nil, nil
	}
	if len(put)+len(remove) == 0 && (done || !complete) {
		return writeError
	}
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	for _, row := range remove {
		if _, _, err := c.Table.Delete(txn, row); err != nil {
			return fmt.Errorf("free the id of node %s: %w", row.Name, err)
		}
	}
	for _, row := range put {
		if _, _, err := c.Table.Insert(txn, row); err != nil {
			return fmt.Errorf("assign an id to node %s: %w", row.Name, err)
		}
	}
	if complete {
		c.initialized(txn)
	}
	txn.Commit()
	return writeError
}

// lists returns the rows of the files in numbers: the rows of the table, except the ones in had, and the rows of next.
func (c *controller) lists(now statedb.ReadTxn, numbers map[int]struct{}, had map[string]*nodeids.NodeID, next assigned) map[int][]*nodeids.NodeID {
	lists := make(map[int][]*nodeids.NodeID, len(numbers))
	for number := range numbers {
		lists[number] = nil
		for row := range c.Table.LowerBound(now, nodeids.ByID(uint16(number*fileIDs))) {
			if numberOf(row.ID) != number {
				break
			}
			if had[row.Name] == nil {
				lists[number] = append(lists[number], row)
			}
		}
	}
	for _, row := range next.byName {
		if list, written := lists[numberOf(row.ID)]; written {
			lists[numberOf(row.ID)] = append(list, row)
		}
	}
	for _, list := range lists {
		slices.SortFunc(list, func(a, b *nodeids.NodeID) int { return int(a.ID) - int(b.ID) })
	}
	return lists
}
