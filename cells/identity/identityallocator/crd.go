package identityallocator

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// crd assigns numbers that are names of CiliumIdentity objects, the same on all nodes. It requests missing objects, which a reconciler creates: see [creator].
type crd struct {
	crds    statedb.Table[*cilium.Identity]
	servers statedb.Table[apiservers.Server]
	wanted  statedb.Table[*wanted]
	numbers *numbers
	grace   time.Duration // see [Config]
}

// choose implements backend. In this order it returns the number of an object, the number that endpoints with the labels already have, and after the grace
// period a number of this node.
func (b *crd) choose(txn statedb.ReadTxn, in input, key string, s set, now time.Time) (out choice) {
	if row, found := lowest(txn, b.crds, key); found {
		return choice{number: number{row.ID, s.labels, identities.CRD}}
	}
	row, _, asked := b.wanted.Get(txn, wantedByLabels(key))
	had := b.numbers.byKey[key]
	kept := had.Source == identities.CRD && b.free(txn, had.ID, key)
	// Partial labels are temporary, and before the objects are read the missing ones are unknown.
	if in.synced && !s.partial {
		out.want = &wanted{Labels: s.labels, Status: reconciler.StatusPending()}
		if kept {
			out.want.Prefer = had.ID
		}
		if asked { // the row keeps its status and its preferred number
			out.want.Prefer = row.Prefer
			out.want.again = row.ID != 0 && in.gone[row.ID] // deleted before the watch delivered it
		}
	}
	switch {
	case asked && row.ID != 0 && row.Status.Kind == reconciler.StatusKindDone && b.free(txn, row.ID, key):
		out.number = number{row.ID, s.labels, identities.CRD}
		return out
	case kept:
		out.number = had
		return out
	}
	return b.provisional(txn, in, key, s, now, row, out)
}

// provisional waits for a number of the cluster for the grace period, unless none is expected, and then returns a number of this node.
func (b *crd) provisional(txn statedb.ReadTxn, in input, key string, s set, now time.Time, row *wanted, out choice) choice {
	failed := row != nil && row.Status.Kind == reconciler.StatusKindError
	has := b.numbers.byKey[key].Source == identities.Provisional
	if !has && !failed && !s.partial && !apiservers.AllUnreachable(txn, b.servers) && now.Sub(s.since) < b.grace {
		out.again = s.since.Add(b.grace)
		return out
	}
	own := b.numbers.own(key, s, identities.Provisional)
	out.number = own.number
	why := errors.New("the API server has not responded yet")
	switch {
	case own.problem != nil:
		why = own.problem
	case s.partial:
		why = errors.New("labels of its endpoints are unknown; see the module endpoint-manager")
	case failed:
		out.why = row.Full // other errors differ between attempts, and each would change all rows
		why = errors.New(row.Status.GetError())
	case !in.synced:
		why = errors.New("the CiliumIdentity objects are not read yet; see the table sources")
	}
	out.problem = fmt.Errorf("%s: %w", printable.Short(key, longestName), why)
	return out
}

// free reports whether no object assigns the number to other labels.
func (b *crd) free(txn statedb.ReadTxn, id uint32, key string) bool {
	row, _, found := b.crds.Get(txn, cilium.IdentityByName(decimal(id)))
	return !found || cilium.LabelsKey(row.Labels) == key
}
