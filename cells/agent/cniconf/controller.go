package cniconf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/fsnotify/fsnotify"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/notify"
	"github.com/waggle-net/waggle/pkg/readiness"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/cniconfig"
	"github.com/waggle-net/waggle/pkg/tables/configs"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// settle is the debounce interval of events in the directory, including events of the agent's own writes.
	settle = 50 * time.Millisecond
	// settleMax is the maximum time by which continuous events extend a wait.
	settleMax = time.Second
	// verify is the interval of checks without an event, in case an event was lost.
	verify = time.Minute
	// retryMin and retryMax bound the wait after a failure.
	retryMin, retryMax = 500 * time.Millisecond, time.Minute
)

type params struct {
	cell.In

	Log       *slog.Logger
	Jobs      job.Group
	DB        *statedb.DB
	Options   options
	Agent     agentconfig.Agent
	Table     statedb.RWTable[cniconfig.Config]
	Readiness readiness.Tables
	Configs   statedb.Table[configs.Config]
}

// controller is the job of the cell.
type controller struct{ params }

func register(p params) {
	if p.Options.WriteCNIConfWhenReady == "" {
		return
	}
	c := &controller{p}
	watchdog.AddRetried(p.Jobs, "write-cni-conf", c.run, retryMin, retryMax)
}

// run waits until pods can be attached, then maintains the file.
func (c *controller) run(ctx context.Context, health cell.Health) error {
	for {
		watchdog.Busy(ctx)
		txn := c.DB.ReadTxn()
		changed := c.Readiness.Watch(txn)
		verdict := readiness.Evaluate(txn, c.Readiness)
		if verdict.Ready() {
			return c.keep(ctx, health)
		}
		waiting := strings.Join(verdict.Waiting(), "; ")
		if err := c.report(cniconfig.Waiting, waiting); err != nil {
			return err
		}
		health.OK("waiting for " + waiting)
		watchdog.Idle(ctx)
		if _, err := changed.Wait(ctx, settle); err != nil {
			return nil // ctx has ended
		}
	}
}

// watch is a watch of directories.
type watch struct {
	add    func(dir string) error
	events <-chan fsnotify.Event
	errors <-chan error
}

// keep watches the directory and maintains the file.
func (c *controller) keep(ctx context.Context, health cell.Health) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the directory of the CNI configuration: %w", err)
	}
	defer notify.Close(watcher)
	return c.maintain(ctx, health, watch{watcher.Add, watcher.Events, watcher.Errors})
}

// maintain writes the file, and restores it after a change.
func (c *controller) maintain(ctx context.Context, health cell.Health, w watch) error {
	wait, restored := retryMin, &restorations{}
	for {
		watchdog.Busy(ctx)
		next := verify
		state, note, err := c.once(w, restored)
		left, pending := restored.pending(time.Now())
		if pending {
			next = min(next, left)
		}
		if !pending || state != cniconfig.Written { // otherwise the restoration follows within milliseconds
			if err := c.publish(health, state, note, err); err != nil {
				return err
			}
		}
		if state == cniconfig.Failed {
			next, wait = wait, min(2*wait, retryMax)
		} else {
			wait = retryMin
		}
		watchdog.IdleFor(ctx, next)
		if !waitForChange(ctx, w, next) {
			return nil
		}
	}
}

// once writes the file, renames other configurations with --cni-exclusive, and watches the directory. It adds the watch before reading, so that it
// misses no change. note describes what other programs add to a file in effect.
func (c *controller) once(w watch, restored *restorations) (state cniconfig.State, note string, err error) {
	path := c.Options.WriteCNIConfWhenReady
	wanted, err := contents(c.Options, c.Agent.StateDir, c.socketPath())
	if err != nil {
		return cniconfig.Failed, "", err
	}
	_ = w.add(filepath.Dir(path)) // fails if the first write has not created the directory yet
	added, err := c.ensure(path, wanted, restored)
	if err == nil && c.Options.CNIExclusive {
		var renamed []string
		if renamed, err = renameOthers(path); len(renamed) > 0 {
			c.Log.Info("Renamed other CNI configurations", "names", renamed, "suffix", backup)
		}
	}
	if err := errors.Join(err, w.add(filepath.Dir(path))); err != nil {
		return cniconfig.Failed, "", err
	}
	before, delegating, err := listPreceding(path)
	switch {
	case err != nil:
		return cniconfig.Failed, "", err
	case len(before) > 0:
		return cniconfig.Shadowed, "", fmt.Errorf("runtimes use %s, which sorts before %s by name, so this agent does not attach new pods: "+
			"remove it, or set --cni-exclusive", strings.Join(before, ", "), path)
	}
	if err := restored.conflict(c.Options); err != nil {
		return cniconfig.Conflict, "", err
	}
	return cniconfig.Written, noteOf(added, delegating), nil
}

// ensure writes the file unless it has the wanted contents, with plugins that other programs added, or a restoration must wait. It returns the types of
// these plugins.
func (c *controller) ensure(path string, wanted []byte, restored *restorations) (added []string, err error) {
	desired, found := wanted, "the file is missing"
	present, readErr := readFile(path)
	switch {
	case readErr == nil:
		found = describe(present)
		if c.Options.ReadCNIConf == "" { // the administrator's list is complete
			if desired, added, err = merge(present, wanted); err != nil {
				return nil, err
			}
		}
		if sameJSON(present, desired) {
			restored.ok(wanted, time.Now())
			return added, nil
		}
	case !errors.Is(readErr, fs.ErrNotExist):
		found = readErr.Error()
	}
	if restored.changed(wanted, found, time.Now()) > 0 {
		return added, nil
	}
	if err := write(path, desired); err != nil {
		return nil, err
	}
	repaired := restored.restores(wanted)
	restored.written(wanted, time.Now())
	switch {
	case !repaired:
		c.Log.Info("Wrote the CNI configuration", "path", path)
	case restored.count < conflictThreshold:
		c.Log.Info("Restored the CNI configuration after a change by another program", "path", path, "found", found)
	case restored.count == conflictThreshold: // later ones change only the row and health
		c.Log.Warn("Another program keeps changing the CNI configuration", "path", path, "found", found)
	}
	return added, nil
}

// noteOf describes the plugins that other programs added, and the configurations that sort first and delegate to the file; "" without any.
func noteOf(added, delegating []string) string {
	var notes []string
	if len(added) > 0 {
		notes = append(notes, "other programs added the plugins "+join(added))
	}
	if len(delegating) > 0 {
		notes = append(notes, "multus comes first ("+join(delegating)+") and must delegate to this file")
	}
	return strings.Join(notes, "; ")
}

// publish publishes the state of the file as health and in the table.
func (c *controller) publish(health cell.Health, state cniconfig.State, note string, err error) error {
	switch {
	case err == nil && note != "":
		health.OK("the CNI configuration is written: " + note)
	case err == nil:
		health.OK("the CNI configuration is written")
	default:
		health.Degraded("the CNI configuration is not in effect", err)
		note = err.Error()
	}
	return c.report(state, note)
}

// socketPath returns the value of --socket-path, which belongs to the API's cell; empty means the default path.
func (c *controller) socketPath() string {
	row, _, _ := c.Configs.Get(c.DB.ReadTxn(), configs.ByKey("socket-path"))
	return row.Value
}

// report writes the row of the file. It does not write an equal row again.
func (c *controller) report(state cniconfig.State, message string) error {
	row := cniconfig.Config{Path: c.Options.WriteCNIConfWhenReady, State: state, Message: message}
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	if err := rows.Put(txn, c.Table, cniconfig.ByPath(row.Path), row, rows.Identical); err != nil {
		return err
	}
	txn.Commit()
	return nil
}

// waitForChange waits for an event of a configuration, or for at most d, and settleMax longer while events arrive. It returns false when ctx ends.
func waitForChange(ctx context.Context, w watch, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	end := time.Now().Add(d + settleMax)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-w.errors: // such as a lost event: check now
			return true
		case event := <-w.events:
			if strings.HasSuffix(event.Name, temporary) {
				continue // a write of the agent, which must not shorten the wait after a failure
			}
			if isConf(event.Name) || event.Has(fsnotify.Remove|fsnotify.Rename) {
				timer.Reset(min(settle, time.Until(end)))
			}
		}
	}
}
