package configreport

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/config"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/configs"
)

const (
	// interval between two reads of the directory. kubelet takes about as long to update the files of a ConfigMap.
	interval = time.Minute
	// named is the maximum number of options in a health message.
	named = 10
)

// comparer compares --config-dir with the options of the running agent.
type comparer struct{ params }

func (c *comparer) run(ctx context.Context, health cell.Health) error {
	return loop.Run(ctx, c.DB, loop.Options{Interval: interval}, func(r *loop.Round) error {
		changed, rejected, err := c.Config.Reader.Compare()
		problem := line(errors.Join(err, rejected))
		rows := differing(c.Table.All(r.Txn), changed, problem)
		if err := c.insert(rows); err != nil {
			return err
		}
		report(health, changed, rejected, err)
		if len(rows) > 0 {
			c.log(ctx, changed, problem)
		}
		return nil
	})
}

// log logs a new result.
func (c *comparer) log(ctx context.Context, changed []config.Option, problem string) {
	level := slog.LevelInfo
	if problem != "" {
		level = slog.LevelWarn
	}
	c.Log.Log(ctx, level, "Compared the configuration directory with the running options", "differing", names(changed), "problem", problem)
}

// differing returns the rows that this result of a comparison changes.
func differing(rows iter.Seq2[configs.Config, statedb.Revision], changed []config.Option, problem string) (out []configs.Config) {
	next := map[string]config.Option{}
	for _, o := range changed {
		next[o.Key] = o
	}
	for row := range rows {
		updated := row
		updated.Changed, updated.Next, updated.NextSource, updated.Problem = false, "", "", ""
		if o, found := next[row.Key]; found {
			updated.Changed, updated.Next, updated.NextSource = true, o.Value, o.Source.String()
		}
		if row.Key == config.DirFlag {
			updated.Problem = problem
		}
		if updated != row {
			out = append(out, updated)
		}
	}
	return out
}

// report reports the result as health. It is Degraded while the agent would not start again. A changed option alone is OK, because the agent works as configured
// until it is restarted.
func report(health cell.Health, changed []config.Option, rejected, err error) {
	text := "the agent runs with the options in --config-dir"
	switch {
	case rejected != nil:
		text = "the agent cannot start again with the files in --config-dir"
	case len(changed) > 0:
		text = "options in --config-dir that apply after a restart of the agent: " + names(changed)
	}
	switch {
	case errors.Is(err, fs.ErrPermission) && rejected == nil:
		// The agent has dropped CAP_DAC_OVERRIDE, with which it has read the files at its start, so it can start again.
		health.OK(fmt.Sprintf("the running agent has no permission to read --config-dir: %s; as of the last read: %s", line(err), text))
	case err != nil:
		health.Degraded("--config-dir cannot be read; as of the last read: "+text, errors.Join(err, rejected))
	case rejected != nil:
		health.Degraded(text, rejected)
	default:
		health.OK(text)
	}
}

// names lists the options.
func names(options []config.Option) string {
	var keys []string
	for _, o := range options {
		keys = append(keys, o.Key)
	}
	return printable.List(keys, named)
}

// line returns the text of an error in one line, or "" without an error.
func line(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
