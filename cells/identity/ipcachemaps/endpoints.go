package ipcachemaps

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// local claims the addresses of the endpoints of this node.
type local struct {
	cell.In

	DB        *statedb.DB
	Endpoints statedb.Table[*endpoints.Endpoint]
	Policies  statedb.Table[*endpointpolicies.EndpointPolicy]
	Writer    *writer
}

func registerEndpoints(jobs job.Group, l local) {
	watchdog.Add(jobs, "claim-endpoints", l.run)
}

// run is incremental: the cost of an ADD does not depend on the number of endpoints.
func (l local) run(ctx context.Context, health cell.Health) error {
	rows, published, err := l.subscribe()
	if err != nil {
		return err
	}
	defer rows.Close()
	defer published.Close()
	claimed := map[netip.Prefix]uint16{} // the endpoint whose claim it is
	of := map[uint16][]netip.Prefix{}    // the claims of each endpoint
	return loop.Run(ctx, l.DB, loop.Options{Tables: []statedb.TableMeta{l.Endpoints, l.Policies}}, func(r *loop.Round) error {
		marked := map[uint16]bool{}
		for _, change := range rows.UpTo(r.Txn, r.Changed) {
			marked[change.Object.ID] = true
		}
		for _, change := range published.UpTo(r.Txn, r.Changed) {
			marked[change.Object.EndpointID] = true
		}

		var put []ipcache.Claim
		var remove []netip.Prefix
		for id := range marked {
			for _, prefix := range of[id] {
				if claimed[prefix] == id {
					delete(claimed, prefix)
					remove = append(remove, prefix)
				}
			}
		}
		for _, prefix := range remove { // another endpoint may have the address
			if ep, _, found := l.Endpoints.Get(r.Txn, endpoints.ByAddress(prefix.Addr())); found {
				marked[ep.ID] = true
			}
		}
		for id := range marked {
			delete(of, id)
			for _, claim := range l.claims(r.Txn, id) {
				put = append(put, claim)
				claimed[claim.Prefix] = id
				of[id] = append(of[id], claim.Prefix)
			}
		}
		l.Writer.Update(ipcache.OwnerEndpoints, put, remove, r.Complete(l.Endpoints, l.Policies))

		health.OK(fmt.Sprintf("%d addresses of endpoints", len(claimed)))
		return nil
	})
}

// subscribe follows endpoints and policies. The feeds start with all existing rows.
func (l local) subscribe() (rows *changefeed.Feed[*endpoints.Endpoint], published *changefeed.Feed[*endpointpolicies.EndpointPolicy], err error) {
	txn := l.DB.WriteTxn(l.Endpoints, l.Policies)
	defer txn.Commit()
	rows, err1 := changefeed.Follow(txn, l.Endpoints)
	published, err2 := changefeed.Follow(txn, l.Policies)
	return rows, published, errors.Join(err1, err2)
}

// claims returns the addresses of an endpoint. It returns none for an endpoint in quarantine, and none before all policies in the kernel include the
// endpoint's identity.
func (l local) claims(txn statedb.ReadTxn, id uint16) (claims []ipcache.Claim) {
	ep, _, found := l.Endpoints.Get(txn, endpoints.ByID(id))
	if !found || ep.Quarantine != "" {
		return nil
	}
	policy, found := endpointpolicies.Of(txn, l.Policies, ep.ID, ep.AttachmentID())
	if !found {
		return nil
	}
	for _, addr := range []netip.Addr{ep.IPv4, ep.IPv6} {
		if addr.IsValid() {
			claims = append(claims, ipcache.Claim{Prefix: netip.PrefixFrom(addr, addr.BitLen()),
				Identity: policy.Identity, Source: ipcache.SourceLocal})
		}
	}
	return claims
}
