package basedevices

import (
	"context"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"golang.org/x/time/rate"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	agent "github.com/waggle-net/waggle/pkg/settings"

	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// podLinksOwner names the settings of pod links.
const podLinksOwner = sysctls.OwnerPodLinks

// podLinksInterval is the least time between two computations; the first after a pause does not wait.
const podLinksInterval = 20 * time.Millisecond

// registerPodLinks turns the reverse path filter of pod links off. Packets of a pod come in at its link, but the route
// back leads into waggle_host, so a node whose default for new links is strict would drop them.
func registerPodLinks(jobs job.Group, db *statedb.DB, a agent.Agent, table statedb.Table[*endpoints.Endpoint], w sysctls.Writer) {
	if !a.EnableIPv4 {
		return // IPv6 has no such filter
	}
	heartbeat.Add(jobs, "compute-pod-links", func(ctx context.Context, health cell.Health) error {
		limiter := rate.NewLimiter(rate.Every(podLinksInterval), 1)
		for limiter.Wait(ctx) == nil {
			txn := heartbeat.Snapshot(ctx, db, table)
			rows, changed := table.AllWatch(txn)
			var settings []sysctls.Setting
			for e := range rows {
				if e.HostIfName != "" {
					// The link may be gone by now: its pod is being deleted.
					settings = append(settings, sysctls.Setting{Name: "net/ipv4/conf/" + e.HostIfName + "/rp_filter", Value: "0", Optional: true})
				}
			}
			if err := w.Replace(podLinksOwner, settings); err != nil {
				health.Degraded("settings of pod links are wanted by somebody else", err)
			} else {
				health.OK("Settings of pod links are known")
			}
			heartbeat.Idle(ctx)
			select {
			case <-ctx.Done():
			case <-changed:
			}
		}
		return nil
	})
}
