package healthreport

import (
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/tables/health"
)

// source creates the reporters of modules.
type source struct {
	db    *statedb.DB
	table statedb.RWTable[health.Status]
	now   func() time.Time
}

func newSource(db *statedb.DB, table statedb.RWTable[health.Status]) hive.HealthSource {
	return &source{db: db, table: table, now: time.Now}
}

// ForModule implements hive.HealthSource.
func (s *source) ForModule(id cell.FullModuleID) cell.Health {
	return &reporter{source: s, module: id.String()}
}

// reporter implements cell.Health for one scope. Its only state is the row, so that two reporters of the same scope (of an ended job and its
// replacement) agree. Any goroutine may report; the write transaction serializes the reports.
type reporter struct {
	*source
	module    string
	component string
}

// NewScope implements cell.Health. The scope has no row until it reports.
func (r *reporter) NewScope(name string) cell.Health {
	component := name
	if r.component != "" {
		component = r.component + "." + name
	}
	return &reporter{source: r.source, module: r.module, component: component}
}

// OK implements cell.Health.
func (r *reporter) OK(message string) { r.report(health.OK, message, nil) }

// Degraded implements cell.Health.
func (r *reporter) Degraded(message string, err error) { r.report(health.Degraded, message, err) }

// Stopped implements cell.Health.
func (r *reporter) Stopped(message string) { r.report(health.Stopped, message, nil) }

func (r *reporter) report(level health.Level, message string, err error) {
	next := health.Status{Module: r.module, Component: r.component, Level: level, Message: message}
	if err != nil {
		next.Error = err.Error()
	}
	if old, _, found := r.table.Get(r.db.ReadTxn(), health.ByID(next.ID())); found && same(old, next) {
		return
	}
	txn := r.db.WriteTxn(r.table)
	defer txn.Abort()
	old, _, found := r.table.Get(txn, health.ByID(next.ID()))
	if found && same(old, next) {
		return
	}
	if _, _, err := r.table.Insert(txn, follow(old, next, r.now())); err != nil {
		return
	}
	txn.Commit()
}

// Close implements cell.Health: it deletes the rows of this scope and of the scopes below it, and marks Degraded rows as closed.
func (r *reporter) Close() {
	txn := r.db.WriteTxn(r.table)
	defer txn.Abort()
	changed := false
	prefix := health.Status{Module: r.module, Component: r.component}.ID()
	for row := range r.table.Prefix(txn, health.ByID(prefix)) {
		if !within(row, r.component) {
			continue
		}
		var err error
		switch {
		case row.Level != health.Degraded:
			_, _, err = r.table.Delete(txn, row)
		case !row.Closed:
			row.Closed = true
			_, _, err = r.table.Insert(txn, row)
		default:
			continue
		}
		if err != nil {
			return
		}
		changed = true
	}
	if changed {
		txn.Commit()
	}
}

// within reports whether row belongs to component or to a scope below it.
func within(row health.Status, component string) bool {
	return component == "" || row.Component == component || strings.HasPrefix(row.Component, component+".")
}

// same reports whether next repeats the row. It ignores text after " (" in a message: hive's jobs put run times and counters there, and without this
// rule a timer job would write a row, and wake every watcher, at each tick.
func same(old, next health.Status) bool {
	return !old.Closed && old.Level == next.Level && old.Error == next.Error && gist(old.Message) == gist(next.Message)
}

func gist(message string) string {
	head, _, _ := strings.Cut(message, " (")
	return head
}

// follow completes next with the time and counter fields that depend on the previous row.
func follow(old, next health.Status, now time.Time) health.Status {
	next.UpdatedAt, next.LastOK, next.Count = now, old.LastOK, old.Count
	if old.Level != next.Level {
		next.Count++
	}
	if next.Level == health.OK || old.Level == health.OK {
		next.LastOK = now
	}
	return next
}
