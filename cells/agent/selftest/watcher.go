package selftest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/fsnotify/fsnotify"

	"github.com/waggle-net/waggle/pkg/notify"
	"github.com/waggle-net/waggle/pkg/selftestreport"
	"github.com/waggle-net/waggle/pkg/tables/selftests"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// watcher maintains the table self-tests.
type watcher struct{ params }

// run reads the report, and reads it again whenever the file changes.
func (w *watcher) run(ctx context.Context, health cell.Health) error {
	boot, err := w.Boot()
	if err != nil {
		return err
	}
	events, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the report of the self-test: %w", err)
	}
	defer notify.Close(events)
	for {
		watchdog.Busy(ctx)
		watching := events.Add(w.Agent.StateDir) // before the read, so that no change is missed
		row, folders, unreadable := w.evaluate(boot)
		if err := w.commit(row, folders); err != nil {
			return err
		}
		switch {
		case unreadable != nil:
			health.Degraded("the report of the self-test cannot be read", unreadable)
		case row.State == selftests.Failed:
			health.Degraded("the self-test failed", errors.New(row.Message))
		case folders != "":
			health.Degraded("the container runtime may not find the plugin", errors.New(folders))
		default:
			health.OK(string(row.State))
		}
		wait := reread
		if watching != nil {
			wait = time.Second // the directory does not exist yet
		}
		watchdog.IdleFor(ctx, wait)
		if !waitForChange(ctx, events, selftestreport.Path(w.Agent.StateDir), wait) {
			return nil
		}
	}
}

// evaluate returns the row for the report, and a problem with the folders of the container runtime, if any. With an unreadable report the row stays Waiting.
func (w *watcher) evaluate(boot string) (row selftests.SelfTest, folders string, unreadable error) {
	row = selftests.SelfTest{Name: selftests.Attach, State: selftests.Waiting}
	report, err := selftestreport.Read(w.Agent.StateDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		row.Message = "waggle-agent setup to report an attach"
	case err != nil:
		row.Message = err.Error()
		return row, "", err
	case report.BootID != boot:
		row.Message = "waggle-agent setup to report an attach of this boot"
		return row, "", nil
	case report.Error != "":
		row.State, row.At, row.Message = selftests.Failed, report.At, report.Error
	default:
		row.State, row.At = selftests.Passed, report.At
	}
	return row, report.Folders, nil
}

// commit writes the row of the attach, and a row of the folders if there is a problem with them. Equal rows are not written again.
func (w *watcher) commit(row selftests.SelfTest, folders string) error {
	txn := w.DB.WriteTxn(w.Table)
	defer txn.Abort()
	if err := w.put(txn, row); err != nil {
		return err
	}
	wrong := selftests.SelfTest{Name: selftests.Folders, State: selftests.Failed, At: row.At, Message: folders}
	_, _, known := w.Table.Get(txn, selftests.ByName(wrong.Name))
	var err error
	switch {
	case folders != "":
		err = w.put(txn, wrong)
	case known:
		_, _, err = w.Table.Delete(txn, wrong)
	}
	if err != nil {
		return fmt.Errorf("write the folders of the container runtime: %w", err)
	}
	txn.Commit()
	return nil
}

// put writes a row unless the table has an equal one, and logs a change of the state.
func (w *watcher) put(txn statedb.WriteTxn, row selftests.SelfTest) error {
	old, _, found := w.Table.Get(txn, selftests.ByName(row.Name))
	if found && old.State == row.State && old.Message == row.Message && old.At.Equal(row.At) {
		return nil
	}
	if _, _, err := w.Table.Insert(txn, row); err != nil {
		return fmt.Errorf("insert the outcome of the self-test: %w", err)
	}
	if !found || old.State != row.State {
		w.Log.Info("Self-test", "name", row.Name, "state", row.State, "message", row.Message)
	}
	return nil
}

// waitForChange waits for an event of the file, or for at most d. It returns false when ctx ends.
func waitForChange(ctx context.Context, events *fsnotify.Watcher, path string, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-events.Errors: // such as a lost event: read now
			return true
		case event := <-events.Events:
			if event.Name == path {
				timer.Reset(settle)
			}
		}
	}
}
