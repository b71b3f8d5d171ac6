package identity

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

// crd gives numbers that are the names of CiliumIdentity objects, the same on all nodes. Those that are missing it wants
// made; a reconciler does so: see [creator].
type crd struct {
	crds    statedb.Table[*cilium.Identity]
	servers statedb.Table[apiservers.Server]
	wanted  statedb.Table[*wanted]
	numbers *numbers
	grace   time.Duration // see [Config]
}

// choose implements backend: the best first, that of an object, the one that the set's endpoints have had, and after a while one
// of this node.
func (b *crd) choose(txn statedb.ReadTxn, in input, key string, s set, now time.Time) (out choice) {
	if row, found := lowest(txn, b.crds, key); found {
		return choice{number: number{row.ID, s.labels, identities.CRD}}
	}
	row, _, asked := b.wanted.Get(txn, wantedByLabels(key))
	had := b.numbers.byKey[key]
	kept := had.Source == identities.CRD && b.free(txn, had.ID, key)
	// Partial labels are those of a moment, and before the objects are read nobody knows which are missing.
	if in.synced && !s.partial {
		out.want = &wanted{Labels: s.labels, Status: reconciler.StatusPending()}
		if kept {
			out.want.Prefer = had.ID
		}
		if asked { // the row keeps its status and what it prefers
			out.want.Prefer = row.Prefer
			out.want.again = row.ID != 0 && in.gone[row.ID] // deleted before anybody saw it
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

// provisional waits a little for a better number, unless it is known that none will come.
func (b *crd) provisional(txn statedb.ReadTxn, in input, key string, s set, now time.Time, row *wanted, out choice) choice {
	failed := row != nil && row.Status.Kind == reconciler.StatusKindError
	has := b.numbers.byKey[key].Source == identities.Provisional
	if !has && !failed && !s.partial && !apiservers.Away(txn, b.servers) && now.Sub(s.since) < b.grace {
		out.again = s.since.Add(b.grace)
		return out
	}
	own := b.numbers.own(key, s, identities.Provisional)
	out.number = own.number
	why := errors.New("the API server has not answered yet")
	switch {
	case own.problem != nil:
		why = own.problem
	case s.partial:
		why = errors.New("labels of its endpoints are not known; see the module endpoint-manager")
	case failed:
		out.why = row.Full // other errors differ from one attempt to the next, and each would be a change of all rows
		why = errors.New(row.Status.GetError())
	case !in.synced:
		why = errors.New("the CiliumIdentity objects are not read yet; see the table sources")
	}
	out.problem = fmt.Errorf("%s: %w", printable.Short(key, longestName), why)
	return out
}

// free tells whether no object gives the number to other labels.
func (b *crd) free(txn statedb.ReadTxn, id uint32, key string) bool {
	row, _, found := b.crds.Get(txn, cilium.IdentityByName(decimal(id)))
	return !found || cilium.LabelsKey(row.Labels) == key
}
