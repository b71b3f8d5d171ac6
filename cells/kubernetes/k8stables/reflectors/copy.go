package reflectors

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/snapshot"
	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// load fills the tables from the copy on disk, from all of it or not at all. The tables become usable, not initialized.
func (s *Source) load(health cell.Health) {
	if s.settings.Copy == "" {
		return
	}
	err := s.loadFile()
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return
	}
	s.log.Warn("The copy of Kubernetes objects on disk is not used", "path", s.settings.Copy, "error", err)
	where := ""
	if movedTo, moved := snapshot.Quarantine(s.settings.Copy); moved == nil {
		where = "; it was moved to " + movedTo
	}
	health.Degraded("the copy on disk is not used"+where, err)
}

func (s *Source) loadFile() error {
	file, err := snapshot.Read(s.settings.Copy)
	if err != nil {
		return err
	}
	h, raw, err := snapshot.Decode(file, s.settings.NodeName)
	if err != nil {
		return fmt.Errorf("read %s: %w", s.settings.Copy, err)
	}
	if h.Cluster != s.cluster {
		return fmt.Errorf("read %s: it is of another cluster: the CA or the address of the API server differs", s.settings.Copy)
	}
	rows := map[string][]k8sobjects.Row{}
	for _, r := range raw {
		table, ok := s.set.ByName(r.Table)
		if !ok {
			continue // a table of another version of the agent
		}
		row, err := table.Decode(r.Row)
		if err != nil {
			return fmt.Errorf("read %s: %w", s.settings.Copy, err)
		}
		rows[r.Table] = append(rows[r.Table], row)
	}
	return s.fill(h, rows)
}

// fill writes all tables of a copy in one commit.
func (s *Source) fill(h snapshot.Header, rows map[string][]k8sobjects.Row) error {
	txn := s.set.Write(s.set.All()...)
	defer txn.Abort()
	for _, name := range h.Tables {
		table, ok := s.set.ByName(name)
		if !ok {
			continue
		}
		for _, row := range rows[name] {
			if err := table.Put(txn, row); err != nil {
				return err
			}
		}
		if err := s.set.SetSource(txn, sources.Source{Table: name, Producer: sources.CopyOnDisk, State: sources.Snapshot,
			WaitingFor: sources.FirstList, Copy: h.Written}); err != nil {
			return err
		}
	}
	txn.Commit()
	s.copied = h.Written
	s.log.Info("Started with the copy of Kubernetes objects on disk", "written", h.Written, "rows", h.Rows)
	return nil
}

// settle is the pause before the first copy, so that it contains the first lists of all tables.
const settle = 2 * time.Second

// copyAgain is the time after which an unchanged copy is written again, so that the age of the file is the age of its content.
const copyAgain = time.Hour

const (
	// copyRatio is the ratio of the pause between two copies to the CPU time of a copy: in a large cluster, where some row changes all the time, copies use a
	// two-thousandth of a CPU.
	copyRatio = 2000
	// longestCopyPause bounds this pause. A copy of 500,000 rows takes about 1 s of CPU time.
	longestCopyPause = 10 * time.Minute
)

// copies writes the copy after changes of the tables, with a pause of at least Settings.CopyEvery between writes, and once at the end if it is out of date.
func (s *Source) copies(ctx context.Context, health cell.Health) {
	if s.settings.Copy == "" {
		return
	}
	ctx, end := watchdog.With(ctx, "copy")
	defer end()
	pause(ctx, min(s.settings.CopyEvery, settle))
	for {
		watchdog.Busy(ctx)
		txn := s.set.DB.ReadTxn()
		watch, names := s.complete(txn)
		wait, rest := copyAgain, s.settings.CopyEvery
		if len(names) > 0 {
			var err error
			cost := s.pace.Measure(func() { err = s.copy(txn, names) })
			if err != nil {
				health.Degraded("write the copy", err)
				wait = s.settings.CopyEvery // the next attempt
			} else {
				health.OK("written")
			}
			if !s.isIncomplete(names) { // an incomplete copy is soon completed
				rest = s.pace.After(cost)
			}
		}
		watchdog.Idle(ctx)
		pause(ctx, rest)
		if !changed(ctx, watch, wait) && ctx.Err() != nil {
			return
		}
	}
}

// changed waits for a change until ctx ends, at most for limit, and reports whether there is one, also if ctx has ended.
func changed(ctx context.Context, channels []<-chan struct{}, limit time.Duration) bool {
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	watch := statedb.NewWatchSet()
	watch.Add(channels...)
	_, _ = watch.Wait(waiting, 0) // with both a change and the end, Wait may report either
	return slices.ContainsFunc(channels, func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	})
}

// complete lists the tables to copy, none while all usable tables come from the copy itself. A channel closes when the list or the content of a table changes.
func (s *Source) complete(txn statedb.ReadTxn) (watch []<-chan struct{}, names []string) {
	fresh := false
	for _, t := range s.set.All() {
		row, _, _ := s.set.Sources.Get(txn, sources.ByTable(t.Name()))
		if done, changed := t.Initialized(txn); !done {
			watch = append(watch, changed)
		}
		if row.Usable() {
			watch = append(watch, t.Changed(txn))
			names = append(names, t.Name())
		}
		fresh = fresh || row.State == sources.Synced
	}
	if !fresh {
		return watch, nil
	}
	return watch, names
}

// isIncomplete reports whether names lacks a table that the node requires.
func (s *Source) isIncomplete(names []string) bool {
	return slices.ContainsFunc(s.set.All(), func(t tables.Table) bool { return !s.set.Optional(t.Name()) && !slices.Contains(names, t.Name()) })
}

func (s *Source) copy(txn statedb.ReadTxn, names []string) error {
	h := snapshot.Header{Node: s.settings.NodeName, Cluster: s.cluster, Written: s.age(txn, names), Tables: names}
	file, err := snapshot.Encode(h, func(yield func(string, any) bool) {
		for _, name := range names {
			table, _ := s.set.ByName(name)
			for row := range table.All(txn) {
				if !yield(name, shown(row)) {
					return
				}
			}
		}
	})
	if err == nil {
		err = s.writeFile(s.settings.Copy, file)
	}
	if err != nil {
		return err
	}
	return s.stamp(names, h.Written)
}

// age returns the time of the oldest rows of a copy: that of the loaded copy while one of the tables has rows of it, otherwise now.
func (s *Source) age(txn statedb.ReadTxn, names []string) time.Time {
	for _, name := range names {
		if row, _, _ := s.set.Sources.Get(txn, sources.ByTable(name)); row.Copied() {
			return s.copied
		}
	}
	return time.Now().UTC().Truncate(time.Second)
}

// shown returns the form in which a row is stored. The encoder would encode a row with an encoding of its own twice.
func shown(row k8sobjects.Row) any {
	if ep, ok := row.(*cilium.Endpoint); ok {
		return ep.Fields()
	}
	return row
}

// stamp writes the time of the copy to the rows of sources.
func (s *Source) stamp(names []string, written time.Time) error {
	txn := s.set.Write([]tables.Table{}...)
	defer txn.Abort()
	for _, name := range names {
		row, _, _ := s.set.Sources.Get(txn, sources.ByTable(name))
		row.Copy = written
		if err := s.set.SetSource(txn, row); err != nil {
			return err
		}
	}
	txn.Commit()
	return nil
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
