package k8stables

import (
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// producer is the name of this source in the table sources and as an initializer.
const producer = "manifests"

type tablesParams struct {
	cell.In

	DB         *statedb.DB
	Nodes      statedb.RWTable[*k8s.Node]
	Pods       statedb.RWTable[*k8s.Pod]
	Namespaces statedb.RWTable[*k8s.Namespace]
	Services   statedb.RWTable[*k8s.Service]
	Policies   statedb.RWTable[*k8s.NetworkPolicy]
	Sources    statedb.RWTable[sources.Source]
	Manifests  statedb.RWTable[manifest]
}

// tables are all tables of this cell. They change together, in one commit.
type tables struct {
	tablesParams
	initializers []func(statedb.WriteTxn)
}

func newTables(p tablesParams) *tables {
	t := &tables{tablesParams: p}
	txn := t.write()
	defer txn.Abort()
	t.initializers = []func(statedb.WriteTxn){
		p.Nodes.RegisterInitializer(txn, producer), p.Pods.RegisterInitializer(txn, producer),
		p.Namespaces.RegisterInitializer(txn, producer), p.Services.RegisterInitializer(txn, producer),
		p.Policies.RegisterInitializer(txn, producer), p.Sources.RegisterInitializer(txn, producer),
		p.Manifests.RegisterInitializer(txn, producer),
	}
	txn.Commit()
	return t
}

func (t *tables) write() statedb.WriteTxn {
	return t.DB.WriteTxn(t.Nodes, t.Pods, t.Namespaces, t.Services, t.Policies, t.Sources, t.Manifests)
}

// filled names the tables that have a row in sources.
func (t *tables) filled() []string {
	return []string{t.Nodes.Name(), t.Pods.Name(), t.Namespaces.Name(), t.Services.Name(), t.Policies.Name()}
}

// waiting says that nothing could be read so far, and why. Rows of an earlier reading stay as they are.
func (t *tables) waiting(why string) error {
	txn := t.write()
	defer txn.Abort()
	for _, name := range t.filled() {
		old, _, ok := t.Sources.Get(txn, sources.ByTable(name))
		if ok && (old.Usable() || old.WaitingFor == why) {
			continue
		}
		row := sources.Source{Table: name, Producer: producer, State: sources.Waiting, Since: time.Now(), WaitingFor: why}
		if _, _, err := t.Sources.Insert(txn, row); err != nil {
			return fmt.Errorf("insert source of %s: %w", name, err)
		}
	}
	txn.Commit()
	return nil
}

// commit makes the tables what a complete reading gave. Equal rows are not written again.
func (t *tables) commit(s set) error {
	txn := t.write()
	defer txn.Abort()
	for _, replaceOne := range []func() error{
		func() error { return replace(txn, t.Nodes, s.nodes) },
		func() error { return replace(txn, t.Pods, s.pods) },
		func() error { return replace(txn, t.Namespaces, s.namespaces) },
		func() error { return replace(txn, t.Services, s.services) },
		func() error { return replace(txn, t.Policies, s.policies) },
		func() error { return replace(txn, t.Manifests, s.manifests) },
	} {
		if err := replaceOne(); err != nil {
			return err
		}
	}
	for _, name := range t.filled() {
		if old, _, ok := t.Sources.Get(txn, sources.ByTable(name)); ok && old.State == sources.Synced {
			continue
		}
		row := sources.Source{Table: name, Producer: producer, State: sources.Synced, Since: time.Now()}
		if _, _, err := t.Sources.Insert(txn, row); err != nil {
			return fmt.Errorf("insert source of %s: %w", name, err)
		}
	}
	for _, initialized := range t.initializers {
		initialized(txn)
	}
	txn.Commit()
	return nil
}

// row is what replace needs to know of a row.
type row[T any] interface {
	Key() string
	Equal(T) bool
}

// replace makes a table hold exactly want.
func replace[T row[T]](txn statedb.WriteTxn, table statedb.RWTable[T], want map[string]T) error {
	same := map[string]bool{}
	for old := range table.All(txn) {
		wanted, ok := want[old.Key()]
		switch {
		case !ok:
			if _, _, err := table.Delete(txn, old); err != nil {
				return fmt.Errorf("delete %s from %s: %w", old.Key(), table.Name(), err)
			}
		case wanted.Equal(old):
			same[old.Key()] = true
		}
	}
	for key, wanted := range want {
		if same[key] {
			continue
		}
		if _, _, err := table.Insert(txn, wanted); err != nil {
			return fmt.Errorf("insert %s into %s: %w", key, table.Name(), err)
		}
	}
	return nil
}
