package routereconciler

import (
	"fmt"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
)

// writer implements [desiredroutes.Writer].
type writer struct {
	table rows.Owned[*desiredroutes.Route]
}

func newWriter(db *statedb.DB, table statedb.RWTable[*desiredroutes.Route]) desiredroutes.Writer {
	return &writer{rows.Owned[*desiredroutes.Route]{
		DB: db, Table: table,
		Key: (*desiredroutes.Route).Key, ByKey: desiredroutes.ByKey,
		Owner: func(r *desiredroutes.Route) string { return r.Owner }, ByOwner: desiredroutes.ByOwner,
		Same: rows.Same[*desiredroutes.Route],
		Conflict: func(want, old *desiredroutes.Route) error {
			return fmt.Errorf("want route %s in table %d: %s owns it", want.Dst, want.Table, old.Owner)
		},
	}}
}

// Expect implements [desiredroutes.Writer].
func (w *writer) Expect(owner string) { w.table.Expect(owner) }

// Replace implements [desiredroutes.Writer].
func (w *writer) Replace(owner string, routes []desiredroutes.Route) error {
	return w.table.Replace(owner, pending(owner, routes))
}

// Update implements [desiredroutes.Writer].
func (w *writer) Update(owner string, put, remove []desiredroutes.Route) error {
	keys := make([]string, len(remove))
	for i := range remove {
		keys[i] = remove[i].Key()
	}
	return w.table.Update(owner, pending(owner, put), keys)
}

// pending returns rows of an owner that the reconciler has not applied.
func pending(owner string, routes []desiredroutes.Route) []*desiredroutes.Route {
	list := make([]*desiredroutes.Route, len(routes))
	for i, r := range routes {
		r.Owner, r.Dst = owner, r.Dst.Masked()
		list[i] = r.WithStatus(reconciler.StatusPending())
	}
	return list
}
