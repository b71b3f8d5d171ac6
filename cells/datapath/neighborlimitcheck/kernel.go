package neighborlimitcheck

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/sysctlfs"
	"github.com/waggle-net/waggle/pkg/tables/neighborlimits"
)

// errHidden is the error in a network namespace without the files of the limits: the limits apply to the whole machine, and old kernels show them only in the
// initial namespace.
var errHidden = errors.New("this network namespace does not show the limits")

// kernel reads from procfs.
type kernel struct {
	settings   sysctlfs.FS
	statistics string // directory of the counters: "/proc/net/stat"
}

func newKernel(a agentconfig.Agent) kernel {
	return kernel{sysctlfs.Below(a.Procfs), "/proc/self/net/stat"} // namespace of the agent; --procfs may contain only settings
}

// files are the directory of the settings and the file of the counters, by family.
var files = []struct {
	family, settings, statistics string
	ipv6                         bool
}{
	{"ipv4", "net/ipv4/neigh/default", "arp_cache", false},
	{"ipv6", "net/ipv6/neigh/default", "ndisc_cache", true},
}

// read returns a row for each family, with Expected unset. A family without limits is left out; the error is errHidden when no family has limits.
func (k kernel) read() (rows []neighborlimits.Limit, err error) {
	for _, f := range files {
		row := neighborlimits.Limit{Family: f.family}
		for name, to := range map[string]*int{"gc_thresh2": &row.Soft, "gc_thresh3": &row.Hard} {
			text, readErr := k.settings.Read(filepath.Join(f.settings, name))
			if readErr == nil {
				*to, readErr = strconv.Atoi(text)
			}
			if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) {
				return nil, fmt.Errorf("read %s of %s: %w", name, f.settings, readErr)
			}
		}
		if row.Hard == 0 {
			continue // no such file: a limit is at least 1
		}
		if err := k.count(f.statistics, &row); err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return nil, errHidden
	}
	return rows, nil
}

// count reads the counters of a family. Without a file they stay 0.
func (k kernel) count(name string, row *neighborlimits.Limit) error {
	text, err := os.ReadFile(filepath.Join(k.statistics, name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	if row.Entries, row.Overflows, err = parse(string(text)); err != nil {
		return fmt.Errorf("read %s of the kernel: %w", name, err)
	}
	return nil
}

// parse parses the counters of a neighbour table: a line of names, then a line for each CPU, in hexadecimal. The counter entries counts the whole table and is
// equal on all lines; table_fulls is per CPU.
func parse(text string) (entries int, overflows uint64, err error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	names := strings.Fields(lines[0])
	all, full := slices.Index(names, "entries"), slices.Index(names, "table_fulls")
	if all < 0 || full < 0 {
		return 0, 0, fmt.Errorf("want the counters entries and table_fulls, got %.100q", lines[0])
	}
	for _, line := range lines[1:] {
		values := strings.Fields(line)
		if len(values) != len(names) {
			return 0, 0, fmt.Errorf("%d counters for %d names", len(values), len(names))
		}
		n, entriesErr := strconv.ParseUint(values[all], 16, 31)
		tableFulls, fullErr := strconv.ParseUint(values[full], 16, 63)
		if err := errors.Join(entriesErr, fullErr); err != nil {
			return 0, 0, err
		}
		entries, overflows = int(n), overflows+tableFulls
	}
	return entries, overflows, nil
}
