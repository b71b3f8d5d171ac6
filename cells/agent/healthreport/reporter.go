package healthreport

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/health"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// publishInterval is the maximum delay of a new message of a component that stays OK. Many of these messages count rows. Without the delay, each of a dozen
// components, reconcilers included, commits its row again for each node that joins.
const publishInterval = time.Second

// source creates the reporters of modules.
type source struct {
	db    *statedb.DB
	table statedb.RWTable[health.Status]
	now   func() time.Time

	mu   sync.Mutex               // guards late; held during the commit of a report, and taken after the lock of the table
	late map[string]health.Status // last reports that differ from their rows only in the message, by ID; all of them and their rows are OK
}

func newSource(db *statedb.DB, table statedb.RWTable[health.Status]) *source {
	return &source{db: db, table: table, now: time.Now, late: map[string]health.Status{}}
}

func registerPublisher(jobs job.Group, s *source) {
	watchdog.AddTimer(jobs, "publish-messages", s.publish, publishInterval)
}

// publish writes the delayed messages in one transaction.
func (s *source) publish(context.Context) error {
	s.mu.Lock()
	none := len(s.late) == 0
	s.mu.Unlock()
	if none {
		return nil
	}
	txn, now := s.db.WriteTxn(s.table), s.now()
	defer txn.Abort()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, next := range s.late {
		old, _, found := s.table.Get(txn, health.ByID(id))
		if !found { // the scope is closed
			continue
		}
		if _, _, err := s.table.Insert(txn, follow(old, next, now)); err != nil {
			return fmt.Errorf("insert the health of %s: %w", id, err)
		}
	}
	txn.Commit()
	clear(s.late)
	return nil
}

// ForModule implements hive.HealthSource.
func (s *source) ForModule(id cell.FullModuleID) cell.Health {
	return &reporter{source: s, module: id.String()}
}

// reporter implements cell.Health for one scope. It has no state of its own, so that two reporters of the same scope (of an ended job and its
// replacement) agree. Any goroutine may report; the write transaction and the mutex of the source serialize the reports.
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
	id := next.ID()
	if r.delay(id, next) {
		return
	}
	txn, now := r.db.WriteTxn(r.table), r.now()
	defer txn.Abort()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.late, id)
	old, _, found := r.table.Get(txn, health.ByID(id))
	if found && same(old, next) {
		return
	}
	if _, _, err := r.table.Insert(txn, follow(old, next, now)); err != nil {
		return
	}
	txn.Commit()
}

// delay reports whether next must not be written at once: it repeats its row, or publish writes it because the component stays OK.
func (s *source) delay(id string, next health.Status) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, _, found := s.table.Get(s.db.ReadTxn(), health.ByID(id))
	switch {
	case found && same(old, next):
		delete(s.late, id)
	case found && old.Level == health.OK && next.Level == health.OK:
		s.late[id] = next
	default:
		return false
	}
	return true
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
