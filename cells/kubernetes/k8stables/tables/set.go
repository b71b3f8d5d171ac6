package tables

import (
	"fmt"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// Params are the tables that the constructors of the cell create.
type Params struct {
	cell.In

	DB              *statedb.DB
	Nodes           statedb.RWTable[*k8s.Node]
	Pods            statedb.RWTable[*k8s.Pod]
	Namespaces      statedb.RWTable[*k8s.Namespace]
	Services        statedb.RWTable[*k8s.Service]
	Slices          statedb.RWTable[*k8s.EndpointSlice]
	NetworkPolicies statedb.RWTable[*k8s.NetworkPolicy]
	CiliumNodes     statedb.RWTable[*cilium.Node]
	CiliumEndpoints statedb.RWTable[*cilium.Endpoint]
	Identities      statedb.RWTable[*cilium.Identity]
	CiliumPolicies  statedb.RWTable[*cilium.Policy]
	CIDRGroups      statedb.RWTable[*cilium.CIDRGroup]
	Stage           *Stage
	Sources         statedb.RWTable[sources.Source]
	Rejects         statedb.RWTable[Reject]
}

// Set holds all tables of the cell.
type Set struct {
	DB      *statedb.DB
	Sources statedb.RWTable[sources.Source]
	Rejects statedb.RWTable[Reject]
	Stage   *Stage
	tables  []Table
	// optional lists tables whose resource may be unknown to the API server, or forbidden: an agent is often newer than the definitions and
	// permissions in the cluster.
	optional []string
}

// New collects the tables.
func New(p Params) *Set {
	return &Set{p.DB, p.Sources, p.Rejects, p.Stage, []Table{
		newTable(p.Nodes, k8s.NodeByName, func(r *k8s.Node) string { return r.UID }),
		newTable(p.Pods, k8s.PodByName, func(r *k8s.Pod) string { return r.UID }),
		newTable(p.Namespaces, k8s.NamespaceByName, func(r *k8s.Namespace) string { return r.UID }),
		newTable(p.Services, k8s.ServiceByName, func(r *k8s.Service) string { return r.UID }),
		newTable(p.Slices, k8s.EndpointSliceByName, func(r *k8s.EndpointSlice) string { return r.UID }),
		newTable(p.NetworkPolicies, k8s.NetworkPolicyByName, func(r *k8s.NetworkPolicy) string { return r.UID }),
		newTable(p.CiliumNodes, cilium.NodeByName, func(r *cilium.Node) string { return r.UID }),
		newTable(p.CiliumEndpoints, cilium.EndpointByName, func(r *cilium.Endpoint) string { return r.UID() }),
		newTable(p.Identities, cilium.IdentityByName, func(r *cilium.Identity) string { return r.UID }),
		newTable(p.CiliumPolicies, cilium.PolicyByName, func(r *cilium.Policy) string { return r.UID }),
		newTable(p.CIDRGroups, cilium.CIDRGroupByName, func(r *cilium.CIDRGroup) string { return r.UID }),
	}, append(p.Stage.names(), p.CIDRGroups.Name())}
}

// All returns the tables of objects, without the tables of the stage.
func (s *Set) All() []Table { return s.tables }

// ByName returns a table of objects, including the tables of the stage.
func (s *Set) ByName(name string) (Table, bool) {
	named := func(t Table) bool { return t.Name() == name }
	if i := slices.IndexFunc(s.tables, named); i >= 0 {
		return s.tables[i], true
	}
	stage := s.Stage.tables()
	if i := slices.IndexFunc(stage, named); i >= 0 {
		return stage[i], true
	}
	return nil, false
}

// Write opens a transaction on the given tables of objects, and on sources and k8s-rejects.
func (s *Set) Write(tables ...Table) statedb.WriteTxn {
	metas := []statedb.TableMeta{s.Sources, s.Rejects}
	for _, t := range tables {
		metas = append(metas, t.Meta())
	}
	return s.DB.WriteTxn(metas...)
}

// Optional reports whether a node works without the rows of a table.
func (s *Set) Optional(table string) bool { return slices.Contains(s.optional, table) }

// SetSource writes the state of a table. It keeps Since while the state is unchanged, and Copy unless row has one.
func (s *Set) SetSource(txn statedb.WriteTxn, row sources.Source) error {
	old, _, found := s.Sources.Get(txn, sources.ByTable(row.Table))
	if row.Since = time.Now(); found && old.State == row.State {
		row.Since = old.Since
	}
	if row.Copy.IsZero() {
		row.Copy = old.Copy
	}
	row.Optional = s.Optional(row.Table)
	if found && old == row {
		return nil
	}
	if _, _, err := s.Sources.Insert(txn, row); err != nil {
		return fmt.Errorf("insert source of %s: %w", row.Table, err)
	}
	return nil
}

// Missing returns the rows of a table that are missing in set, by key.
func Missing(txn statedb.ReadTxn, t Table, set map[string]k8sobjects.Row) map[string]k8sobjects.Row {
	missing := map[string]k8sobjects.Row{}
	for row := range t.All(txn) {
		if _, found := set[row.Key()]; !found {
			missing[row.Key()] = row
		}
	}
	return missing
}

// Replace replaces the rows of a table that mine selects by want.
func Replace(txn statedb.WriteTxn, t Table, want map[string]k8sobjects.Row, mine func(k8sobjects.Row) bool) error {
	var gone []string
	for old := range t.All(txn) {
		if _, ok := want[old.Key()]; !ok && mine(old) {
			gone = append(gone, old.Key())
		}
	}
	for _, key := range gone {
		if err := t.Delete(txn, key); err != nil {
			return err
		}
	}
	for _, row := range want {
		if err := t.Put(txn, row); err != nil {
			return err
		}
	}
	return nil
}
