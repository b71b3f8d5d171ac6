package main

import (
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/pkg/bootlog"
	"github.com/waggle-net/waggle/pkg/config"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/version"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// serve runs the agent until a signal or a cell stops it.
func (a *agent) serve(cmd *cobra.Command) error {
	log, err := a.prepare(cmd)
	if err != nil {
		return err
	}
	for _, warning := range a.config.Warnings {
		log.Warn("Configuration", "warning", warning)
	}
	times, err := a.stopTimes()
	if err != nil {
		return err
	}
	a.boundCapabilities(log) // early, while the process has few threads
	if err := hive.Populate(a.hive, log); err != nil {
		return err
	}
	unlock, err := a.lock()
	if err != nil {
		return err
	}
	defer unlock()

	kubeapi.LogTo(log.With("source", "client-go")) // applies to the whole process, so it is set only once serve is certain to run
	defer a.watchSignals(log, times)()
	log.Info("Starting waggle-agent", "version", version.String(), "role", a.role)
	return a.hive.Run(log, upstream.WithStopTimeout(times.hooks))
}

// prepare reads the configuration and creates the logger.
func (a *agent) prepare(cmd *cobra.Command) (*slog.Logger, error) {
	var err error
	if a.config, err = config.Load(cmd.Flags(), a.environ); err != nil {
		return nil, err
	}
	if err := a.checkRole(); err != nil {
		return nil, err
	}
	if err := a.checkProtection(); err != nil {
		return nil, err
	}
	level := slog.LevelInfo
	if verbose, err := cmd.Flags().GetBool("debug"); err == nil && verbose {
		level = slog.LevelDebug
	}
	text := slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: level})
	return slog.New(bootlog.NewHandler(text, a.recorder)), nil
}

// watchSignals stops the hive at the first signal. It ends the process at the second signal, with the exit code of a process that the signal killed, or with
// 1 if stopping takes too long; then the state directory contains the stacks. Hive itself handles signals only after all start hooks; an earlier signal must
// not be lost.
func (a *agent) watchSignals(log *slog.Logger, times stopTimes) (stop func()) {
	signals := make(chan os.Signal, 2)
	done := make(chan struct{})
	var wg sync.WaitGroup
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	wg.Go(func() {
		select {
		case <-done:
			return
		case <-signals:
		}
		a.hive.Shutdown()
		if code := boundStop(log, times, done, signals, func() { a.recordStop(log) }); code != 0 {
			os.Exit(code)
		}
	})
	return func() {
		signal.Stop(signals)
		close(done)
		wg.Wait()
	}
}

// boundStop waits for the stop of a process and returns its exit code, 0 for a complete stop. It returns at times.exit at the latest and calls record at
// times.record.
func boundStop(log *slog.Logger, times stopTimes, done <-chan struct{}, signals <-chan os.Signal, record func()) int {
	slow := time.AfterFunc(times.record, record) // runs concurrently: its disk may be the reason why the stop hangs
	defer slow.Stop()
	return awaitStop(log.With("stopTimeout", times.exit), done, signals, time.After(times.exit))
}

// awaitStop returns the exit code of the process: 0 if it has stopped, even if a signal or the timeout is ready simultaneously. A select with two ready cases
// chooses either.
func awaitStop(log *slog.Logger, done <-chan struct{}, signals <-chan os.Signal, late <-chan time.Time) int {
	stopped := func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	select {
	case <-done:
	case s := <-signals:
		if !stopped() {
			log.Error("Ended by a second signal before everything had stopped", "signal", s)
			return killedBy(s)
		}
	case <-late:
		if !stopped() {
			log.Error("Ended before everything had stopped")
			return 1
		}
	}
	return 0
}

// killedBy returns the exit code that shells report for a process that a signal killed.
func killedBy(s os.Signal) int {
	if number, ok := s.(syscall.Signal); ok {
		return 128 + int(number)
	}
	return 1
}

// recordStop writes the stacks of a hanging stop. The next run reports them.
func (a *agent) recordStop(log *slog.Logger) {
	const what = "the agent did not stop after a stop signal"
	dir, err := a.flags.GetString("state-dir")
	if err != nil || a.role == config.RoleCluster {
		log.Warn("Stopping takes long", "stacks", string(watchdog.Stacks()))
		return
	}
	path, err := watchdog.Record(filepath.Clean(dir), what)
	if err != nil {
		log.Warn("Stopping takes long", "stacks", string(watchdog.Stacks()), "error", err)
		return
	}
	log.Warn("Stopping takes long", "stacks", path)
}
