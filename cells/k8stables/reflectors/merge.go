package reflectors

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/cells/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/changes"
	"github.com/waggle-net/waggle/pkg/ciliumv2"
	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubeapi"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// remoteTable is the table of all pods of the cluster.
const remoteTable = "cilium-endpoints"

// origin is the source of the rows of pods of other nodes.
type origin int

const (
	unknown       origin = iota // a list is missing: the table stays as it is
	fromEndpoints               // all CiliumEndpoints
	fromSlices                  // CiliumEndpointSlices
)

const (
	// slicesTimeout is how long the first list of slices may take before all CiliumEndpoints are listed as well.
	slicesTimeout = 15 * time.Second
	// tick is the time between two comparisons of the pods of this node with the slices, and lagLimit how long slices may lack one of them.
	tick, lagLimit = 30 * time.Second, time.Minute
	mergeSettle    = commitInterval
	// leaveJitter bounds how long agents that have the rows of slices wait, each another time, before they list all CiliumEndpoints.
	leaveJitter = time.Minute
)

// merger fills cilium-endpoints from the tables of the stage. Pods of this node are always those of its own CiliumEndpoints. Those of other nodes are read from slices
// while the slice [ciliumv2.CompleteSlice] exists, and from all CiliumEndpoints, which are followed on demand, while it does not.
//
//   - a list is not complete: the rows stay as they are, which may be those of the copy on disk
//   - slices are not complete any more: until all CiliumEndpoints are listed, slices add and change rows but take none away
//   - a pod is in several slices, as while the cluster role moves it: the slice that was written last counts
//   - slices lag behind, or name a pod of this node: its own CiliumEndpoint counts
type merger struct {
	set         *tables.Set
	node        string // name of this node
	table       tables.Table
	initialized func(statedb.WriteTxn)
	everything  demand // all CiliumEndpoints

	ownFeed, listedFeed *changes.Feed[*cilium.Endpoint]
	sliceFeed           *changes.Feed[*cilium.EndpointSlice]

	slices map[string]*cilium.EndpointSlice            // by name, as far as they are followed
	spaces map[string]map[string]*cilium.EndpointSlice // the same by namespace of their pods
	shared map[string][]string                         // slices that have one pod of another node, by its key; only where they are several
	from   origin                                      // of the rows in the table
	began  time.Time                                   // when the agent began to follow, or from changed last
	late   bool                                        // slicesTimeout is over without a list of slices
	wrote  bool                                        // the open transaction has changed the table

	leaving time.Time // when all CiliumEndpoints are listed because slices are not complete any more; zero while they are
	kept    bool      // there are rows that slices have taken away meanwhile

	compared time.Time            // when the pods of this node were looked for in slices last
	lacking  map[string]time.Time // pods of this node that slices lack, and since when
}

func newMerger(set *tables.Set, node string, txn statedb.WriteTxn) (*merger, error) {
	table, found := set.ByName(remoteTable)
	if !found {
		return nil, fmt.Errorf("merge slices: there is no table %s", remoteTable)
	}
	return &merger{set: set, node: node, table: table, initialized: table.Initializer(txn, Producer+"-slices")}, nil
}

// run merges until ctx ends.
func (m *merger) run(ctx context.Context, health cell.Health) {
	ctx, end := heartbeat.With(ctx, "merge-endpoints")
	defer end()
	defer m.everything.halt()
	if err := m.subscribe(); err != nil {
		health.Degraded("follow slices", err)
		return
	}
	defer m.close()
	m.began = time.Now()
	for ctx.Err() == nil {
		stage := m.set.Stage
		txn := heartbeat.Snapshot(ctx, m.set.DB, stage.Own, stage.Listed, stage.Slices, m.set.Sources)
		changed := statedb.NewWatchSet()
		err := m.round(txn, changed)
		if err == nil {
			err = m.follow(ctx, txn)
		}
		if err != nil {
			m.from = unknown // the next round writes everything
			health.Degraded("write "+remoteTable, err)
		} else {
			m.report(txn, health)
		}
		heartbeat.IdleFor(ctx, tick)
		limited, cancel := context.WithTimeout(ctx, m.pause())
		_, _ = changed.Wait(limited, mergeSettle) // an error is the end of the time or of ctx
		cancel()
	}
}

// pause is the time until something has to be looked at although nothing has changed.
func (m *merger) pause() time.Duration {
	if rest := time.Until(m.leaving); rest > 0 {
		return min(rest, tick)
	}
	if rest := slicesTimeout - time.Since(m.began); !m.late && rest > 0 {
		return rest
	}
	return tick
}

// subscribe begins with everything that exists.
func (m *merger) subscribe() error {
	m.slices, m.spaces, m.shared = map[string]*cilium.EndpointSlice{}, map[string]map[string]*cilium.EndpointSlice{}, map[string][]string{}
	m.from, m.lacking = unknown, map[string]time.Time{}
	stage := m.set.Stage
	txn := m.set.DB.WriteTxn(stage.Own, stage.Listed, stage.Slices)
	defer txn.Commit()
	var errs [3]error
	m.ownFeed, errs[0] = changes.Follow(txn, stage.Own)
	m.listedFeed, errs[1] = changes.Follow(txn, stage.Listed)
	m.sliceFeed, errs[2] = changes.Follow(txn, stage.Slices)
	return errors.Join(errs[:]...)
}

func (m *merger) close() {
	m.ownFeed.Close()
	m.listedFeed.Close()
	m.sliceFeed.Close()
}

// round brings the table up to a snapshot, and adds to changed what closes when there is more.
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
	case leaves: // with the slices that there are
	case from == unknown:
		m.from = unknown
		return m.await(txn)
	case from != m.from || m.kept:
		return m.replace(txn, from)
	}
	w := m.set.Write(m.table)
	defer w.Abort()
	m.wrote = false
	if err := m.update(txn, w, own, listed, inSlices); err != nil {
		return err
	}
	if m.wrote { // a commit without a change would wake all that follow the table
		w.Commit()
	}
	return nil
}

// choose returns the origin whose lists are complete.
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

// rejectedSlices finds the slices that were rejected.
var rejectedSlices = tables.RejectByKey(kubeapi.CiliumEndpointSlices.String() + " ")

// complete reports whether slices have all pods that have a CiliumEndpoint. They do not when one is rejected that has no older state.
func (m *merger) complete(txn statedb.ReadTxn) bool {
	for reject := range m.set.Rejects.Prefix(txn, rejectedSlices) {
		if !reject.Kept && !reject.Used {
			return false
		}
	}
	_, _, said := m.set.Stage.Slices.Get(txn, cilium.EndpointSliceByName(ciliumv2.CompleteSlice))
	return said && m.listed(txn, m.set.Stage.Slices)
}

func (m *merger) listed(txn statedb.ReadTxn, table statedb.TableMeta) bool {
	return sources.Listed(txn, m.set.Sources, table.Name())
}

// follow has all CiliumEndpoints followed while slices are not complete. They are followed on until the rows are those of slices.
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

// keep applies a change of one slice, and returns its previous and its new state; nil for a slice that does not exist.
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

// await writes into sources what the table waits for, unless the table is synced.
func (m *merger) await(txn statedb.ReadTxn) error {
	row, _, _ := m.set.Sources.Get(txn, sources.ByTable(remoteTable))
	if row.State == sources.Synced {
		return nil
	}
	why := firstList
	for _, name := range []string{m.set.Stage.Own.Name(), m.set.Stage.Slices.Name(), m.set.Stage.Listed.Name()} {
		part, _, _ := m.set.Sources.Get(txn, sources.ByTable(name))
		if part.State != sources.Synced && part.WaitingFor != firstList {
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

// replace replaces all rows by those of one origin, whatever was known before.
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

// collect adds the pods of other nodes in all slices.
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

// update applies changes while the origin stays.
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

// compare calls changed for each pod of another node whose entries differ between two states of a slice. A state without the pod has a nil entry.
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
		old, now = m.elsewhere(old), m.elsewhere(now)
		same := old == now || old != nil && now != nil && old.Equal(now)
		if same && (now == nil || m.shared[key] == nil) { // of a pod in several slices the slice counts too, as it is newer now
			continue
		}
		if err := changed(key, old, now); err != nil {
			return err
		}
	}
	return nil
}

// elsewhere returns nil for pods of this node.
func (m *merger) elsewhere(ep *cilium.Endpoint) *cilium.Endpoint {
	if ep != nil && ep.Host() == m.node {
		return nil
	}
	return ep
}

// settle writes the row of a pod: that of the CiliumEndpoint of this node if there is one, otherwise row. Without either it deletes the row.
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
		m.wrote = true
		return m.table.Delete(w, key)
	}
	m.wrote = true
	return m.table.Put(w, row)
}
