package servicehealth

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/services"
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
	heartbeat.AddRetried(jobs, "compute-ports", c.run, 100*time.Millisecond, time.Minute)
}

func (c *controller) run(ctx context.Context, health cell.Health) error {
	limiter := rate.NewLimiter(rate.Every(settle), 1)
	for limiter.Wait(ctx) == nil {
		heartbeat.Busy(ctx) // no snapshot: services without a health check node port do not wake the loop
		all, changed := c.Services.ListWatch(c.DB.ReadTxn(), services.WithHealthCheck)
		want, problems := ports(statedb.Collect(all))
		if err := c.commit(want); err != nil {
			return err
		}
		if len(problems) > 0 {
			health.Degraded("a health check node port has two Services", errors.New(strings.Join(problems[:min(len(problems), 3)], "; ")))
		} else {
			health.OK(fmt.Sprintf("%d ports", len(want)))
		}
		heartbeat.Idle(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
	return nil
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
	differ, changed := maps.Clone(want), false
	for old := range c.Ports.All(txn) {
		row, wanted := want[old.Number]
		if wanted && row.Service == old.Service {
			delete(differ, old.Number)
			continue
		}
		if !wanted {
			changed = true
			if _, _, err := c.Ports.Delete(txn, old); err != nil {
				return err
			}
		}
	}
	for _, row := range differ {
		changed = true
		if _, _, err := c.Ports.Insert(txn, row); err != nil {
			return err
		}
	}
	if changed {
		txn.Commit()
	}
	return nil
}
