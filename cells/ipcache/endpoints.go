package ipcache

import (
	"context"
	"fmt"
	"iter"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	ipcachetable "github.com/waggle-net/waggle/pkg/tables/ipcache"
)

func registerEndpoints(jobs job.Group, db *statedb.DB, table statedb.Table[*endpoints.Endpoint],
	policies statedb.Table[*endpointpolicies.EndpointPolicy], w *writer) {
	heartbeat.Add(jobs, "claim-endpoints", func(ctx context.Context, health cell.Health) error {
		for {
			txn := heartbeat.Snapshot(ctx, db, table, policies)
			rows, changed := table.AllWatch(txn)
			_, policiesChanged := policies.AllWatch(txn)
			complete, initialized := table.Initialized(txn)
			if complete {
				complete, initialized = policies.Initialized(txn)
			}

			claims := endpointClaims(rows, func(ep *endpoints.Endpoint) (uint32, bool) {
				row, found := endpointpolicies.Of(txn, policies, ep.ID, ep.AttachmentID())
				if !found {
					return 0, false
				}
				return row.Identity, true
			})

			if complete {
				initialized = nil
			}
			w.Replace(ipcachetable.OwnerEndpoints, claims, complete)

			health.OK(fmt.Sprintf("%d addresses of endpoints", len(claims)))

			heartbeat.Idle(ctx)
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			case <-policiesChanged:
			case <-initialized:
			}
		}
	})
}

// endpointClaims says who has which address. An endpoint in quarantine has none: nothing of it may pass. One whom
// some policy in the kernel does not know yet has none either.
func endpointClaims(rows iter.Seq2[*endpoints.Endpoint, statedb.Revision], identityOf func(*endpoints.Endpoint) (uint32, bool),
) (claims []ipcachetable.Claim) {
	for ep := range rows {
		number, known := identityOf(ep)
		if !known || ep.Quarantine != "" {
			continue
		}
		for _, addr := range []netip.Addr{ep.IPv4, ep.IPv6} {
			if addr.IsValid() {
				claims = append(claims, ipcachetable.Claim{Prefix: netip.PrefixFrom(addr, addr.BitLen()),
					Identity: number, Source: ipcachetable.SourceLocal})
			}
		}
	}
	return claims
}
