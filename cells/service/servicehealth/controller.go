package servicehealth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// settle is the minimum time between two computations.
const settle = 100 * time.Millisecond

type controller struct {
	cell.In
	DB       *statedb.DB
	Config   Config
	Ports    statedb.RWTable[*port]
	Services statedb.Table[*services.Service]
}

func registerController(jobs job.Group, c controller) {
	if !c.Config.HealthCheckNodePort {
		return
	}
	watchdog.AddRetried(jobs, "compute-ports", c.run, 100*time.Millisecond, time.Minute)
}

func (c *controller) run(ctx context.Context, health cell.Health) error {
	// Options.Tables is empty, because services without a health check node port begin no round.
	return loop.Run(ctx, c.DB, loop.Options{Pause: settle}, func(r *loop.Round) error {
		want, problems := ports(statedb.Collect(loop.List(r, c.Services, services.WithHealthCheck)))
		if err := c.commit(want); err != nil {
			return err
		}
		if len(problems) > 0 {
			health.Degraded("a health check node port has two Services", errors.New(strings.Join(problems[:min(len(problems), 3)], "; ")))
		} else {
			health.OK(fmt.Sprintf("%d ports", len(want)))
		}
		return nil
	})
}

// ports returns the ports of services, which must be sorted by name: the first service that requests a port owns it.
func ports(all []*services.Service) (want map[uint16]*port, problems []string) {
	want = map[uint16]*port{}
	for _, s := range all {
		n := s.HealthCheckNodePort
		if has := want[n]; has != nil {
			problems = append(problems, fmt.Sprintf("%d is answered for %s, not for %s", n, has.Service, s.Name))
			continue
		}
		want[n] = &port{Number: n, Service: s.Name, Status: reconciler.StatusPending()}
	}
	return want, problems
}

// commit replaces the content of the table. Unchanged rows keep their status.
func (c *controller) commit(want map[uint16]*port) error {
	txn := c.DB.WriteTxn(c.Ports)
	defer txn.Abort()
	same := func(old, row *port) bool { return row.Service == old.Service }
	if err := rows.Replace(txn, c.Ports, c.Ports.All(txn), want, func(p *port) uint16 { return p.Number }, same); err != nil {
		return err
	}
	txn.Commit()
	return nil
}
