package configreport

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/config"
	"github.com/waggle-net/waggle/pkg/tables/configs"
)

// directory is the configuration directory of a script.
type directory struct {
	ConfigDir string `mapstructure:"config-dir"`
}

func (d directory) Flags(flags *pflag.FlagSet) { flags.String(config.DirFlag, "", "") }

// effective returns the options of an agent, from the directory if there is one.
func (d directory) effective() (config.Effective, error) {
	if d.ConfigDir == "" {
		return config.Effective{Options: []config.Option{
			{Key: "enable-ipv6", Value: "false", Default: "true", Source: config.Environment, Origin: "WAGGLE_ENABLE_IPV6"},
			{Key: "node-name", Source: config.Default},
		}, Ignored: []config.Ignored{
			{Key: "enable-wireguard", Source: config.Directory, Origin: "/c/enable-wireguard", Unprotected: "packets between nodes are not encrypted"},
			{Key: "kvstore", Source: config.Flag, Origin: "--kvstore"},
		}}, nil
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.AddFlags(flags)
	flags.Int("device-mtu", 1500, "")
	flags.Bool("enable-ipv6", true, "")
	flags.String("node-name", "", "")
	if err := flags.Parse([]string{"--config-dir=" + d.ConfigDir}); err != nil {
		return config.Effective{}, err
	}
	return config.Load(flags, []string{"WAGGLE_ENABLE_IPV6=false"})
}

func TestScripts(t *testing.T) {
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{Cell, cell.Config(directory{}), cell.Provide(directory.effective)}
	})
}

// A row that is written again without a change wakes every reader of the table, once a minute.
func TestDiffering_SameResult_WritesNoRow(t *testing.T) {
	t.Parallel()
	rows := []configs.Config{{Key: config.DirFlag, Value: "/c"}, {Key: "device-mtu", Value: "9000"}, {Key: "kvstore", Ignored: true}}
	all := func() iter.Seq2[configs.Config, statedb.Revision] {
		return func(yield func(configs.Config, statedb.Revision) bool) {
			for _, row := range rows {
				if !yield(row, 1) {
					return
				}
			}
		}
	}
	changed := []config.Option{{Key: "device-mtu", Value: "1400", Source: config.Directory}}
	for _, step := range []struct {
		name    string
		changed []config.Option
		problem string
		want    []configs.Config
	}{
		{"nothing", nil, "", nil},
		{"an option", changed, "", []configs.Config{{Key: "device-mtu", Value: "9000", Changed: true, Next: "1400", NextSource: "directory"}}},
		{"the same option", changed, "", nil},
		{"a problem", changed, "lost", []configs.Config{{Key: config.DirFlag, Value: "/c", Problem: "lost"}}},
		{"the same problem", changed, "lost", nil},
		{"neither", nil, "", []configs.Config{{Key: config.DirFlag, Value: "/c"}, {Key: "device-mtu", Value: "9000"}}},
	} {
		got := differing(all(), step.changed, step.problem)
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: rows %+v, want %+v", step.name, got, step.want)
		}
		for _, row := range got {
			rows[slices.IndexFunc(rows, func(r configs.Config) bool { return r.Key == row.Key })] = row
		}
	}
}

// An agent that has dropped CAP_DAC_OVERRIDE may lose the access to a directory of another user. It can start again, so it is not Degraded.
func TestReport_WithoutPermission_IsOK(t *testing.T) {
	t.Parallel()
	changed := []config.Option{{Key: "device-mtu"}}
	noPermission := fmt.Errorf("--config-dir=/c: read the directory: %w", fs.ErrPermission)
	for _, c := range []struct {
		rejected, err error
		level         cell.Level
	}{
		{nil, noPermission, cell.StatusOK},
		{nil, errors.Join(fmt.Errorf("/c/device-mtu: %w", fs.ErrPermission)), cell.StatusOK},
		{nil, fmt.Errorf("--config-dir=/c: read the directory: %w", fs.ErrNotExist), cell.StatusDegraded},
		{errors.New("unknown option"), noPermission, cell.StatusDegraded}, // the files of the last read are bad
	} {
		_, health := cell.NewSimpleHealth()
		report(health, changed, c.rejected, c.err)
		if health.Level != c.level {
			t.Errorf("%v, %v: level %s, want %s", c.rejected, c.err, health.Level, c.level)
		}
	}
}

func TestNames_AreCapped(t *testing.T) {
	t.Parallel()
	var options []config.Option
	for i := range named + 2 {
		options = append(options, config.Option{Key: fmt.Sprintf("k%02d", i)})
	}
	const first = "k00, k01, k02, k03, k04, k05, k06, k07, k08, k09"
	for n, want := range map[int]string{0: "", 1: "k00", named: first, named + 2: first + " and 2 more"} {
		if got := names(options[:n]); got != want {
			t.Errorf("%d options: %q, want %q", n, got, want)
		}
	}
}
