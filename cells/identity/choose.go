package identity

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// grace is how long an endpoint waits for a number of the cluster before it gets one of this node.
const grace = time.Second

// choice is the number of one set of labels, as far as there is one.
type choice struct {
	number  number    // ID 0 while there is none
	want    *wanted   // the object that should be made; nil when there is one or none can be made
	again   time.Time // when to choose again; zero for never
	problem error
	why     string // what keeps the labels from a number of the cluster for long; empty when nothing does
}

// choose finds the number of one set of labels, the best first: a fixed one, that of an object, the one that its endpoints
// have had, and after a while one of this node.
func (c *controller) choose(txn statedb.ReadTxn, in input, key string, s set, now time.Time) (out choice) {
	if len(s.labels) == 0 {
		init := fixed(identity.Init)
		return choice{number: number{init.ID, init.Labels, init.Source}}
	}
	if c.Client == nil {
		return c.chooseMemory(in, key, s)
	}
	if row, found := lowest(txn, c.CRDs, key); found {
		return choice{number: number{row.ID, s.labels, identities.CRD}}
	}
	row, _, asked := c.Wanted.Get(txn, wantedByLabels(key))
	had := c.numbers.byKey[key]
	kept := had.Source == identities.CRD && c.free(txn, had.ID, key)
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
	case asked && row.ID != 0 && row.Status.Kind == reconciler.StatusKindDone && c.free(txn, row.ID, key):
		out.number = number{row.ID, s.labels, identities.CRD}
		return out
	case kept:
		out.number = had
		return out
	}
	return c.chooseProvisional(txn, in, key, s, now, row, out)
}

// chooseProvisional waits a little for a better number, unless it is known that none will come.
func (c *controller) chooseProvisional(txn statedb.ReadTxn, in input, key string, s set, now time.Time, row *wanted, out choice) choice {
	first, waiting := c.since[key]
	if !waiting {
		first = now
		c.since[key] = now
	}
	failed := row != nil && row.Status.Kind == reconciler.StatusKindError
	has := c.numbers.byKey[key].Source == identities.Provisional
	if !has && !failed && !s.partial && !apiservers.Away(txn, c.Servers) && now.Sub(first) < grace {
		out.again = first.Add(grace)
		return out
	}
	own := c.chooseOwn(key, s, identities.Provisional)
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

// chooseMemory gives numbers out without Kubernetes: those of a cluster, and when these are used up others.
func (c *controller) chooseMemory(in input, key string, s set) choice {
	out := c.chooseOwn(key, s, identities.Memory)
	if !errors.Is(out.problem, errFull) {
		return out
	}
	why := fmt.Errorf("%w: %s", out.problem, c.culprits(in))
	out = c.chooseOwn(key, s, identities.Provisional)
	out.problem = errors.Join(fmt.Errorf("%s: %w", printable.Short(key, longestName), why), out.problem)
	out.why = why.Error()
	return out
}

// culprits names the labels that make so many label sets of endpoints. It is worked out once in a pass.
func (c *controller) culprits(in input) string {
	if *in.culprits == "" {
		*in.culprits = labels.Culprits(func(yield func(map[string]string) bool) {
			for _, s := range in.sets {
				if !yield(s.labels) {
					return
				}
			}
		})
	}
	return *in.culprits
}

// chooseOwn takes the number that the labels have from this node, or gives them one.
func (c *controller) chooseOwn(key string, s set, source identities.Source) choice {
	if had, found := c.numbers.byKey[key]; found && had.Source == source {
		return choice{number: had}
	}
	n, err := c.numbers.allocate(s.labels, source)
	return choice{number: n, problem: err}
}

// free tells whether no object gives the number to other labels.
func (c *controller) free(txn statedb.ReadTxn, id uint32, key string) bool {
	row, _, found := c.CRDs.Get(txn, cilium.IdentityByName(decimal(id)))
	return !found || cilium.LabelsKey(row.Labels) == key
}

func decimal(id uint32) string { return strconv.FormatUint(uint64(id), 10) }
