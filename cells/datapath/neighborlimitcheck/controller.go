package neighborlimitcheck

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/onlink"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/neighborlimits"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

const (
	// interval between two rounds. A round reads four settings and two counter files. After a change of the tables it reads all nodes.
	interval = 30 * time.Second
	// remember is the time for which an overflow of a table is reported.
	remember = 10 * time.Minute
	// least is the smallest recommended limit.
	least = 8192
)

type params struct {
	cell.In

	DB        *statedb.DB
	Table     statedb.RWTable[neighborlimits.Limit]
	Nodes     statedb.Table[*nodes.Node]
	Routes    statedb.Table[*devices.Route]
	Devices   statedb.Table[*devices.Device]
	Endpoints statedb.Table[*endpoints.Endpoint]
	Kernel    kernel
}

type controller struct {
	params
	counted bool // a previous round of this run read the counters, so an increase is a new overflow

	neighbors map[string]int // expected entries by family, computed from the tables with these revisions; nil before the first round
	computed  revisions
}

// revisions are those of the tables that determine the expected entries.
type revisions struct{ nodes, routes, devices, endpoints statedb.Revision }

func (c *controller) run(ctx context.Context, health cell.Health) error {
	return loop.Run(ctx, c.DB, loop.Options{Interval: interval}, func(r *loop.Round) error {
		rows, err := c.Kernel.read()
		switch {
		case errors.Is(err, errHidden):
			health.OK(err.Error())
		case err != nil:
			return err
		default:
			now := revisions{c.Nodes.Revision(r.Txn), c.Routes.Revision(r.Txn), c.Devices.Revision(r.Txn), c.Endpoints.Revision(r.Txn)}
			if c.neighbors == nil || now != c.computed {
				c.neighbors, c.computed = c.expected(r.Txn), now
			}
			if err := c.commit(rows, c.neighbors); err != nil {
				return err
			}
			report(health, rows)
		}
		return nil
	})
}

// expected returns by family the number of other nodes on links of this node plus the number of its pods. The namespaces of the pods share the table, and each
// pod has at least its gateway as a neighbour.
func (c *controller) expected(txn statedb.ReadTxn) map[string]int {
	network := onlink.Read(statedb.Collect(c.Routes.All(txn)), statedb.Collect(c.Devices.All(txn)))
	counts := map[string]int{}
	for n := range c.Nodes.All(txn) {
		if n.Source == nodes.Local {
			continue
		}
		for _, f := range files {
			if addr := n.Address(f.ipv6); addr.IsValid() {
				if _, err := network.Device(addr); err == nil {
					counts[f.family]++
				}
			}
		}
	}
	for e := range c.Endpoints.All(txn) {
		if e.IPv4.IsValid() {
			counts["ipv4"]++
		}
		if e.IPv6.IsValid() {
			counts["ipv6"]++
		}
	}
	return counts
}

// commit completes the rows and writes the changed ones.
func (c *controller) commit(rows []neighborlimits.Limit, expected map[string]int) error {
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	for i := range rows {
		row := &rows[i]
		row.Expected = expected[row.Family]
		old, _, found := c.Table.Get(txn, neighborlimits.ByFamily(row.Family))
		if row.Hard <= old.Hard { // a larger limit clears the last overflow
			row.LastOverflow = old.LastOverflow
		}
		if c.counted && found && row.Overflows > old.Overflows {
			row.LastOverflow = time.Now().UTC()
		}
		if found && *row == old {
			continue
		}
		if _, _, err := c.Table.Insert(txn, *row); err != nil {
			return fmt.Errorf("insert the limits of %s: %w", row.Family, err)
		}
	}
	txn.Commit()
	c.counted = true
	return nil
}

func report(health cell.Health, rows []neighborlimits.Limit) {
	var full, near []error
	for _, row := range rows {
		switch {
		case overflowed(row):
			full = append(full, fmt.Errorf("%s: %d new neighbours rejected since the machine booted; %s", row.Family, row.Overflows, remedy(row)))
		case row.Expected > row.Soft:
			near = append(near, fmt.Errorf("%s: %d nodes on links of this node and pods, and beyond %d entries the kernel removes idle ones early, beyond %d it rejects new ones; %s",
				row.Family, row.Expected, row.Soft, row.Hard, remedy(row)))
		case row.Entries > row.Hard-row.Hard/10:
			near = append(near, fmt.Errorf("%s: %d entries, and beyond %d the kernel rejects new ones; %s", row.Family, row.Entries, row.Hard, remedy(row)))
		}
	}
	switch {
	case len(full) > 0:
		health.Degraded("a neighbour table of the kernel has overflowed, and packets to new neighbours were lost", errors.Join(append(full, near...)...))
	case len(near) > 0:
		health.Degraded("a neighbour table of the kernel is too small", errors.Join(near...))
	default:
		health.OK("the neighbour tables of the kernel hold the nodes on links of this node and its pods")
	}
}

// overflowed reports whether the kernel rejected new neighbours within the last 10 minutes.
func overflowed(row neighborlimits.Limit) bool {
	return !row.LastOverflow.IsZero() && time.Since(row.LastOverflow) < remember
}

// remedy returns the command that sets the limits of a table to at least twice the expected and twice the present entries, rounded up to a power of two.
func remedy(row neighborlimits.Limit) string {
	need := max(2*row.Expected, 2*row.Entries, row.Hard, least)
	if overflowed(row) {
		need = max(need, 2*row.Hard)
	}
	hard := 1 << bits.Len(uint(need-1)) // the next power of two
	const name = "net.%s.neigh.default.gc_thresh"
	return fmt.Sprintf("sysctl -w "+name+"3=%d "+name+"2=%d "+name+"1=%d, and the same in /etc/sysctl.d", row.Family, hard, row.Family, hard/2, row.Family, hard/4)
}
