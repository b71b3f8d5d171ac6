package sysctl

import (
	"errors"
	"fmt"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// writer implements [sysctls.Writer].
type writer struct {
	table rows.Owned[*sysctls.Setting]
}

func newWriter(db *statedb.DB, table statedb.RWTable[*sysctls.Setting]) sysctls.Writer {
	return &writer{rows.Owned[*sysctls.Setting]{
		DB: db, Table: table,
		Key: func(s *sysctls.Setting) string { return s.Name }, ByKey: sysctls.ByName,
		Owner: func(s *sysctls.Setting) string { return s.Owner }, ByOwner: sysctls.ByOwner,
		Same: rows.Same[*sysctls.Setting],
		Conflict: func(want, old *sysctls.Setting) error {
			return fmt.Errorf("request sysctl %s = %s: %s requests %s", want.Name, want.Value, old.Owner, old.Value)
		},
	}}
}

// Replace implements [sysctls.Writer].
func (w *writer) Replace(owner string, settings []sysctls.Setting) error {
	want, err := pending(owner, settings)
	return errors.Join(err, w.table.Replace(owner, want))
}

// Update implements [sysctls.Writer].
func (w *writer) Update(owner string, put []sysctls.Setting, remove []string) error {
	want, err := pending(owner, put)
	return errors.Join(err, w.table.Update(owner, want, remove))
}

// pending returns the rows of settings with a valid name, and an error for each of the others.
func pending(owner string, settings []sysctls.Setting) (list []*sysctls.Setting, err error) {
	var errs []error
	for _, s := range settings {
		if err := validName(s.Name); err != nil {
			errs = append(errs, err)
			continue
		}
		s.Owner = owner
		list = append(list, s.WithStatus(reconciler.StatusPending()))
	}
	return list, errors.Join(errs...)
}
