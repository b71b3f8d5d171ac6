package liveness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/version"
)

const (
	fileName   = "wedge.txt"
	fileBefore = "wedge-before.txt"
	// maxStacks bounds the stacks of goroutines: some 500 of them.
	maxStacks = 1 << 20
)

// writeDown tells the log and the disk once for each time that something begins to hang.
func (j *judge) writeDown(ctx context.Context, health cell.Health) error {
	health.OK("nothing hangs")
	for wedged := false; ; {
		heartbeat.Idle(ctx)
		var wedges []heartbeat.Wedge
		select {
		case <-ctx.Done():
			return nil
		case wedges = <-j.found:
		}
		heartbeat.Busy(ctx)
		switch {
		case len(wedges) > 0 && !wedged:
			j.record(wedges)
			health.Degraded("the agent must be restarted", errors.New(wedges[0].What))
		case len(wedges) == 0 && wedged:
			j.Log.Info("What hung goes on")
			health.OK("nothing hangs")
		}
		wedged = len(wedges) > 0
	}
}

// record writes to the log first: a state directory that hangs may be the cause.
func (j *judge) record(wedges []heartbeat.Wedge) {
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s waggle-agent %s\n", time.Now().UTC().Format(time.RFC3339), version.String())
	for _, w := range wedges {
		fmt.Fprintf(&text, "%s, since %s\n", w.What, w.Since.UTC().Format(time.RFC3339))
		j.Log.Error("The agent must be restarted: something hangs", "what", w.What, "since", w.Since)
	}
	stacks := make([]byte, maxStacks)
	stacks = stacks[:runtime.Stack(stacks, true)]
	if j.Settings.StateDir == "" {
		j.Log.Error("Stacks of all goroutines", "stacks", string(stacks))
		return
	}
	path := filepath.Join(j.Settings.StateDir, fileName)
	if err := os.WriteFile(path, append(append(text.Bytes(), '\n'), stacks...), 0o600); err != nil {
		j.Log.Error("Stacks of all goroutines", "stacks", string(stacks), "error", err)
		return
	}
	j.Log.Error("Stacks of all goroutines were written", "file", path)
}

// sayWhyTheLastRunEnded reads what an earlier run has written before it was ended, once.
func (j *judge) sayWhyTheLastRunEnded() {
	if j.Settings.StateDir == "" {
		return
	}
	path, before := filepath.Join(j.Settings.StateDir, fileName), filepath.Join(j.Settings.StateDir, fileBefore)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = os.Rename(path, before)
	}
	head, _, _ := bytes.Cut(content, []byte("\n\n"))
	j.Log.Warn("Something hung in the run before, which may be why it ended", "what", string(head), "stacks", before, "error", err)
}
