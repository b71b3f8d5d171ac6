package reflectors

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// remoteTable is the table of all pods of the cluster.
const remoteTable = "cilium-endpoints"

// origin is the source of the rows of pods of other nodes.
type origin int

const (
	unknown       origin = iota // a required list is missing: the table stays unchanged
	fromEndpoints               // all CiliumEndpoints
	fromSlices                  // CiliumEndpointSlices
)

const (
	// slicesTimeout is the maximum wait for the first list of slices; after it, all CiliumEndpoints are listed as well.
	slicesTimeout = 15 * time.Second
	// tick is the time between two comparisons of the pods of this node with the slices. lagLimit is how long slices may lack such a pod before the
	// health is Degraded.
	tick, lagLimit = 30 * time.Second, time.Minute
	mergeSettle    = commitInterval
	// leaveJitter is the maximum of the random wait before an agent with rows of slices lists all CiliumEndpoints.
	leaveJitter = time.Minute
)

// merger fills cilium-endpoints from the tables of the stage. The rows of pods of this node always come from its own CiliumEndpoints. The rows of
// pods of other nodes come from slices while the slice [ciliumv2.CompleteSlice] exists, and otherwise from all CiliumEndpoints, which are followed on
// demand.
//
//   - a list is incomplete: the rows stay unchanged, also rows of the copy on disk
//   - slices stop being complete: until all CiliumEndpoints are listed, slices add and change rows but delete none
//   - a pod is in several slices, as while the cluster role moves it: the slice that was written last is preferred
//   - slices lag, or have a pod of this node: its own CiliumEndpoint is preferred
type merger struct {
	set         *tables.Set
	node        string // name of this node
	table       tables.Table
	initialized func(statedb.WriteTxn)
	everything  demand // reflector of all CiliumEndpoints

	ownFeed, listedFeed *changefeed.Feed[*cilium.Endpoint]
	sliceFeed           *changefeed.Feed[*cilium.EndpointSlice]

	slices map[string]*cilium.EndpointSlice            // followed slices by name
	spaces map[string]map[string]*cilium.EndpointSlice // followed slices by the namespace of their pods, and name
	shared map[string][]string                         // names of the slices with the same pod of another node, by its key; only for pods in several slices
	from   origin                                      // origin of the rows in the table
	began  time.Time                                   // start of run, or the last replacement of all rows
	late   bool                                        // slicesTimeout has passed without a list of slices
	dirty  bool                                        // the open transaction has changed the table

	leaving time.Time // time at which the agent begins to list all CiliumEndpoints because slices stopped being complete; zero otherwise
	kept    bool      // the table has rows whose pods slices no longer have

	compared time.Time            // time of the last comparison of the pods of this node with the slices
	missing  map[string]time.Time // pods of this node that slices lack, with the time of the first observation
}

func newMerger(set *tables.Set, node string, txn statedb.WriteTxn) (*merger, error) {
	table, found := set.ByName(remoteTable)
	if !found {
		return nil, fmt.Errorf("merge slices: there is no table %s", remoteTable)
	}
	return &merger{set: set, node: node, table: table, initialized: table.Initializer(txn, Producer+"-slices")}, nil
}

// run updates the table until ctx ends.
func (m *merger) run(ctx context.Context, health cell.Health) {
	ctx, end := watchdog.With(ctx, "merge-endpoints")
	defer end()
	defer m.everything.halt()
	if err := m.subscribe(); err != nil {
		health.Degraded("follow slices", err)
		return
	}
	defer m.close()
	m.began = time.Now()
	watched := []statedb.TableMeta{m.set.Stage.Own, m.set.Stage.Listed, m.set.Stage.Slices, m.set.Sources}
	_ = loop.Run(ctx, m.set.DB, loop.Options{Tables: watched, Settle: mergeSettle}, func(r *loop.Round) error {
		err := m.round(r.Txn, r.Changed)
		if err == nil {
			err = m.follow(ctx, r.Txn)
		}
		if err != nil {
			m.from = unknown // the next round writes everything
			health.Degraded("write "+remoteTable, err)
		} else {
			m.report(r.Txn, health)
		}
		r.Within(m.pause())
		return nil
	}) // no round ends the loop
}

// pause returns the maximum time until the next round without a change.
func (m *merger) pause() time.Duration {
	if rest := time.Until(m.leaving); rest > 0 {
		return min(rest, tick)
	}
	if rest := slicesTimeout - time.Since(m.began); !m.late && rest > 0 {
		return rest
	}
	return tick
}

// subscribe opens the change feeds, which begin with all existing rows.
func (m *merger) subscribe() error {
	m.slices, m.spaces, m.shared = map[string]*cilium.EndpointSlice{}, map[string]map[string]*cilium.EndpointSlice{}, map[string][]string{}
	m.from, m.missing = unknown, map[string]time.Time{}
	stage := m.set.Stage
	txn := m.set.DB.WriteTxn(stage.Own, stage.Listed, stage.Slices)
	defer txn.Commit()
	var errs [3]error
	m.ownFeed, errs[0] = changefeed.Follow(txn, stage.Own)
	m.listedFeed, errs[1] = changefeed.Follow(txn, stage.Listed)
	m.sliceFeed, errs[2] = changefeed.Follow(txn, stage.Slices)
	return errors.Join(errs[:]...)
}

func (m *merger) close() {
	m.ownFeed.Close()
	m.listedFeed.Close()
	m.sliceFeed.Close()
}

// round updates the table to a snapshot, and adds to changed the channels that close at the next change.
func (m *merger) round(txn statedb.ReadTxn, changed *statedb.WatchSet) error {
	_, more := m.set.Sources.AllWatch(txn)
	_, rejects := m.set.Rejects.PrefixWatch(txn, rejectedSlices)
	changed.Add(more, rejects)
	own, listed, inSlices := m.ownFeed.UpTo(txn, changed), m.listedFeed.UpTo(txn, changed), m.sliceFeed.UpTo(txn, changed)
	from := m.choose(txn)
	leaves := from == unknown && m.from == fromSlices
	switch {
	case !leaves:
		m.leaving = time.Time{}
	case m.leaving.IsZero():
		m.leaving = time.Now().Add(rand.N(leaveJitter))
	}
	switch {
	case leaves: // continue with the known slices
	case from == unknown:
		m.from = unknown
		return m.await(txn)
	case from != m.from || m.kept:
		return m.replace(txn, from)
	}
	w := m.set.Write(m.table)
	defer w.Abort()
	m.dirty = false
	if err := m.update(txn, w, own, listed, inSlices); err != nil {
		return err
	}
	if m.dirty { // a commit without a change would wake all readers of the table
		w.Commit()
	}
	return nil
}

// choose returns the origin whose lists are complete; slices are preferred.
func (m *merger) choose(txn statedb.ReadTxn) origin {
	switch {
	case !m.listed(txn, m.set.Stage.Own):
		return unknown
	case m.complete(txn):
		return fromSlices
	case m.listed(txn, m.set.Stage.Listed):
		return fromEndpoints
	}
	return unknown
}

// rejectedSlices queries the rejected slices.
var rejectedSlices = tables.RejectByKey(kubeapi.CiliumEndpointSlices.String() + " ")

// complete reports whether slices have all pods with a CiliumEndpoint. They do not while a slice without a last good state is rejected.
func (m *merger) complete(txn statedb.ReadTxn) bool {
	for reject := range m.set.Rejects.Prefix(txn, rejectedSlices) {
		if !reject.Kept && !reject.Used {
			return false
		}
	}
	_, _, marked := m.set.Stage.Slices.Get(txn, cilium.EndpointSliceByName(ciliumv2.CompleteSlice))
	return marked && m.listed(txn, m.set.Stage.Slices)
}

func (m *merger) listed(txn statedb.ReadTxn, table statedb.TableMeta) bool {
	return sources.Listed(txn, m.set.Sources, table.Name())
}

// follow follows all CiliumEndpoints while slices are not complete, and then until the rows come from slices.
func (m *merger) follow(ctx context.Context, txn statedb.ReadTxn) error {
	haveSlices := m.listed(txn, m.set.Stage.Slices)
	m.late = m.late || time.Since(m.began) >= slicesTimeout
	switch {
	case !m.complete(txn) && (haveSlices || m.late):
		if time.Now().Before(m.leaving) {
			return nil
		}
		m.everything.start(ctx)
	case m.from == fromSlices:
		return m.everything.stop()
	}
	return nil
}

// keep applies a change of a slice, and returns the previous and the new state of the slice; nil if it does not exist.
func (m *merger) keep(change statedb.Change[*cilium.EndpointSlice]) (before, after *cilium.EndpointSlice) {
	name := change.Object.Name
	before = m.slices[name]
	if before != nil {
		delete(m.slices, name)
		if delete(m.spaces[before.Namespace], name); len(m.spaces[before.Namespace]) == 0 {
			delete(m.spaces, before.Namespace)
		}
	}
	if change.Deleted {
		return before, nil
	}
	m.index(change.Object)
	return before, change.Object
}

func (m *merger) index(slice *cilium.EndpointSlice) {
	m.slices[slice.Name] = slice
	if m.spaces[slice.Namespace] == nil {
		m.spaces[slice.Namespace] = map[string]*cilium.EndpointSlice{}
	}
	m.spaces[slice.Namespace][slice.Name] = slice
}

// await writes the missing condition of the table to sources, unless the table is synced.
func (m *merger) await(txn statedb.ReadTxn) error {
	row, _, _ := m.set.Sources.Get(txn, sources.ByTable(remoteTable))
	if row.State == sources.Synced {
		return nil
	}
	why := sources.FirstList
	for _, name := range []string{m.set.Stage.Own.Name(), m.set.Stage.Slices.Name(), m.set.Stage.Listed.Name()} {
		part, _, _ := m.set.Sources.Get(txn, sources.ByTable(name))
		if part.State != sources.Synced && part.WaitingFor != sources.FirstList {
			why = printable.Short(name+": "+part.WaitingFor, maxText)
			break
		}
	}
	if row.WaitingFor == why {
		return nil
	}
	w := m.set.Write()
	defer w.Abort()
	row.WaitingFor = why
	if err := m.set.SetSource(w, row); err != nil {
		return err
	}
	w.Commit()
	return nil
}

// replace replaces all rows by the rows of one origin.
func (m *merger) replace(txn statedb.ReadTxn, from origin) error {
	clear(m.slices)
	clear(m.spaces)
	clear(m.shared)
	for slice := range m.set.Stage.Slices.All(txn) {
		m.index(slice)
	}
	want := map[string]k8sobjects.Row{}
	if from == fromSlices {
		m.collect(want)
	} else {
		for row := range m.set.Stage.Listed.All(txn) {
			if row.Host() != m.node {
				want[row.Key()] = row
			}
		}
	}
	for row := range m.set.Stage.Own.All(txn) {
		want[row.Key()] = row
	}
	w := m.set.Write(m.table)
	defer w.Abort()
	if err := tables.Replace(w, m.table, want, func(k8sobjects.Row) bool { return true }); err != nil {
		return err
	}
	m.initialized(w)
	if err := m.set.SetSource(w, sources.Source{Table: remoteTable, Producer: Producer, State: sources.Synced}); err != nil {
		return err
	}
	w.Commit()
	m.from, m.began, m.kept = from, time.Now(), false
	return nil
}

// collect adds the pods of other nodes in all slices to want, and records the pods in several slices.
func (m *merger) collect(want map[string]k8sobjects.Row) {
	in := map[string]*cilium.EndpointSlice{}
	for _, slice := range m.slices {
		for _, ep := range slice.Endpoints {
			key := ep.Key()
			if ep.Host() == m.node {
				continue
			}
			other := in[key]
			if other != nil {
				if m.shared[key] == nil {
					m.shared[key] = []string{other.Name}
				}
				m.shared[key] = append(m.shared[key], slice.Name)
			}
			if other == nil || slice.Newer(other) {
				in[key], want[key] = slice, ep
			}
		}
	}
}

// update applies changes while the origin is unchanged.
func (m *merger) update(txn statedb.ReadTxn, w statedb.WriteTxn, own, listed []statedb.Change[*cilium.Endpoint], inSlices []statedb.Change[*cilium.EndpointSlice]) error {
	for _, change := range inSlices {
		before, after := m.keep(change)
		if m.from != fromSlices {
			continue
		}
		if err := m.compare(before, after, func(key string, a, b *cilium.Endpoint) error {
			row := m.move(w, change.Object.Name, key, a, b)
			if row == nil && !m.leaving.IsZero() {
				m.kept = true
				return nil
			}
			return m.settle(txn, w, key, row)
		}); err != nil {
			return err
		}
	}
	for _, change := range listed {
		row := change.Object
		if m.from != fromEndpoints {
			break
		}
		if change.Deleted || row.Host() == m.node {
			row = nil
		}
		if err := m.settle(txn, w, change.Object.Key(), row); err != nil {
			return err
		}
	}
	for _, change := range own {
		var other *cilium.Endpoint
		if change.Deleted {
			other = m.other(txn, change.Object.Key())
		}
		if err := m.settle(txn, w, change.Object.Key(), other); err != nil {
			return err
		}
	}
	return nil
}

// compare calls changed for each pod of another node whose entry differs between two states of a slice. The entry is nil in a state without the pod.
func (m *merger) compare(before, after *cilium.EndpointSlice, changed func(key string, a, b *cilium.Endpoint) error) error {
	var a, b []*cilium.Endpoint
	if before != nil {
		a = before.Endpoints
	}
	if after != nil {
		b = after.Endpoints
	}
	for len(a)+len(b) > 0 {
		var old, now *cilium.Endpoint
		if len(a) > 0 && (len(b) == 0 || a[0].Key() <= b[0].Key()) {
			old = a[0]
		}
		if len(b) > 0 && (len(a) == 0 || b[0].Key() <= a[0].Key()) {
			now, b = b[0], b[1:]
		}
		key := ""
		if old != nil {
			key, a = old.Key(), a[1:]
		} else {
			key = now.Key()
		}
		old, now = m.onOtherNode(old), m.onOtherNode(now)
		same := old == now || old != nil && now != nil && old.Equal(now)
		if same && (now == nil || m.shared[key] == nil) { // for a pod in several slices the age of the slice matters as well, and it is newer now
			continue
		}
		if err := changed(key, old, now); err != nil {
			return err
		}
	}
	return nil
}

// onOtherNode returns ep, or nil for a pod of this node.
func (m *merger) onOtherNode(ep *cilium.Endpoint) *cilium.Endpoint {
	if ep != nil && ep.Host() == m.node {
		return nil
	}
	return ep
}

// settle writes the row of a pod: this node's own CiliumEndpoint if it exists, otherwise row. It deletes the row if both are missing.
func (m *merger) settle(txn statedb.ReadTxn, w statedb.WriteTxn, key string, row *cilium.Endpoint) error {
	if own, _, found := m.set.Stage.Own.Get(txn, cilium.EndpointByName(key)); found {
		row = own
	}
	old, found := m.table.Get(w, key)
	have, _ := old.(*cilium.Endpoint)
	switch {
	case row == nil && !found, row != nil && found && row.Equal(have):
		return nil
	case row == nil:
		m.dirty = true
		return m.table.Delete(w, key)
	}
	m.dirty = true
	return m.table.Put(w, row)
}
