package k8stables

import (
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// producer names this source in the table sources and as an initializer.
const producer = "manifests"

// manifestTables writes all tables together, in one commit.
type manifestTables struct {
	*tables.Set
	manifests    statedb.RWTable[manifest]
	initializers []func(statedb.WriteTxn)
}

func newManifestTables(set *tables.Set, manifests statedb.RWTable[manifest]) *manifestTables {
	t := &manifestTables{Set: set, manifests: manifests}
	txn := t.write()
	defer txn.Abort()
	for _, table := range set.All() {
		t.initializers = append(t.initializers, table.Initializer(txn, producer))
	}
	t.initializers = append(t.initializers, set.Sources.RegisterInitializer(txn, producer),
		manifests.RegisterInitializer(txn, producer))
	txn.Commit()
	return t
}

func (t *manifestTables) write() statedb.WriteTxn {
	metas := []statedb.TableMeta{t.Sources, t.manifests}
	for _, table := range t.All() {
		metas = append(metas, table.Meta())
	}
	return t.DB.WriteTxn(metas...)
}

// waiting records in sources why nothing has been read yet. Rows of a previous reading stay unchanged.
func (t *manifestTables) waiting(why string) error {
	txn := t.write()
	defer txn.Abort()
	for _, table := range t.All() {
		if old, _, _ := t.Sources.Get(txn, sources.ByTable(table.Name())); old.Usable() {
			continue
		}
		row := sources.Source{Table: table.Name(), Producer: producer, State: sources.Waiting, WaitingFor: why}
		if err := t.SetSource(txn, row); err != nil {
			return err
		}
	}
	txn.Commit()
	return nil
}

// commit replaces the contents of all tables by a complete reading. Equal rows are not written again. With a doubt the state is [sources.Snapshot],
// as with the copy on disk: policies of the previous run are then only narrowed.
func (t *manifestTables) commit(s set, doubt string) error {
	txn := t.write()
	defer txn.Abort()
	all := func(k8sobjects.Row) bool { return true }
	for _, table := range t.All() {
		if err := tables.Replace(txn, table, s.rows[table.Name()], all); err != nil {
			return err
		}
		row := sources.Source{Table: table.Name(), Producer: producer, State: sources.Synced}
		if doubt != "" {
			row.State, row.WaitingFor = sources.Snapshot, doubt
		}
		if err := t.SetSource(txn, row); err != nil {
			return err
		}
	}
	if err := rows.Replace(txn, t.manifests, t.manifests.All(txn), s.manifests, manifest.Key, rows.Identical); err != nil {
		return err
	}
	for _, initialized := range t.initializers {
		initialized(txn)
	}
	txn.Commit()
	return nil
}
