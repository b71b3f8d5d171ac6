package ipcache

import (
	"context"
	"fmt"
	"iter"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	ipcachetable "github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// endpointsOwner is the owner of the claims that come from the table endpoints.
const endpointsOwner = "endpoints"

func registerEndpoints(jobs job.Group, db *statedb.DB, table statedb.Table[*endpoints.Endpoint], w *writer) {
	jobs.Add(job.OneShot("claim-endpoints", func(ctx context.Context, health cell.Health) error {
		for {
			txn := db.ReadTxn()
			rows, changed := table.AllWatch(txn)
			complete, initialized := table.Initialized(txn)

			claims := endpointClaims(rows)

			var done func(statedb.WriteTxn)
			if complete {
				done, initialized = w.endpointsIn, nil
			}
			w.replace(endpointsOwner, claims, done)

			health.OK(fmt.Sprintf("%d addresses of endpoints", len(claims)))

			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			case <-initialized:
			}
		}
	}))
}

// endpointClaims says who has which address. An endpoint in quarantine has none: nothing of it may pass.
func endpointClaims(rows iter.Seq2[*endpoints.Endpoint, statedb.Revision]) (claims []ipcachetable.Claim) {
	for ep := range rows {
		if ep.Quarantine != "" {
			continue
		}
		for _, addr := range []netip.Addr{ep.IPv4, ep.IPv6} {
			if addr.IsValid() {
				claims = append(claims, ipcachetable.Claim{Prefix: netip.PrefixFrom(addr, addr.BitLen()),
					Identity: identity.Init, Source: ipcachetable.SourceLocal})
			}
		}
	}
	return claims
}
