package cniconf

import (
	"context"
	"errors"
	"fmt"
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

// keep writes the file, and restores it after a change.
func (c *controller) keep(ctx context.Context, health cell.Health) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the directory of the CNI configuration: %w", err)
	}
	defer notify.Close(watcher)
	wait := retryMin
	for {
		watchdog.Busy(ctx)
		next := verify
		state, err := c.once(watcher)
		if err := c.publish(health, state, err); err != nil {
			return err
		}
		if state == cniconfig.Failed {
			next, wait = wait, min(2*wait, retryMax)
		} else {
			wait = retryMin
		}
		watchdog.IdleFor(ctx, next)
		if !waitForChange(ctx, watcher, next) {
			return nil
		}
	}
}

// once writes the file, renames other configurations with --cni-exclusive, and watches the directory. It adds the watch before reading, so that it
// misses no change.
func (c *controller) once(watcher *fsnotify.Watcher) (cniconfig.State, error) {
	path := c.Options.WriteCNIConfWhenReady
	wanted, err := contents(c.Options, c.Agent.StateDir, c.socketPath())
	if err != nil {
		return cniconfig.Failed, err
	}
	_ = watcher.Add(filepath.Dir(path)) // fails if the first write has not created the directory yet
	written, err := ensure(path, wanted)
	if written {
		c.Log.Info("Wrote the CNI configuration", "path", path)
	}
	if err == nil && c.Options.CNIExclusive {
		var renamed []string
		if renamed, err = renameOthers(path); len(renamed) > 0 {
			c.Log.Info("Renamed other CNI configurations", "names", renamed, "suffix", backup)
		}
	}
	if err := errors.Join(err, watcher.Add(filepath.Dir(path))); err != nil {
		return cniconfig.Failed, err
	}
	switch before, err := listPreceding(path); {
	case err != nil:
		return cniconfig.Failed, err
	case len(before) > 0:
		return cniconfig.Shadowed, fmt.Errorf("runtimes use %s, which sorts before %s by name, so this agent does not attach new pods: "+
			"remove it, or set --cni-exclusive", strings.Join(before, ", "), path)
	}
	return cniconfig.Written, nil
}

// publish publishes the state of the file as health and in the table.
func (c *controller) publish(health cell.Health, state cniconfig.State, err error) error {
	if err == nil {
		health.OK("the CNI configuration is written")
		return c.report(state, "")
	}
	health.Degraded("the CNI configuration is not in effect", err)
	return c.report(state, err.Error())
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

// waitForChange waits for an event of a configuration, or for at most d. It returns false when ctx ends.
func waitForChange(ctx context.Context, watcher *fsnotify.Watcher, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-watcher.Errors: // such as a lost event: check now
			return true
		case event := <-watcher.Events:
			if strings.HasSuffix(event.Name, temporary) {
				continue // a write of the agent, which must not shorten the wait after a failure
			}
			if isConf(event.Name) || event.Has(fsnotify.Remove|fsnotify.Rename) {
				timer.Reset(settle)
			}
		}
	}
}
