package identityallocator

import (
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// backend assigns numbers to label sets: [memory] or [crd]. One goroutine calls it, in each pass for every label set of an endpoint. It has no state except
// numbers and tables.
type backend interface {
	// choose returns the number of one label set, which has at least one label. The controller stores the number, and removes it from another set that had it.
	choose(txn statedb.ReadTxn, in input, key string, s set, now time.Time) choice
}

// newBackend selects the backend: crd with Kubernetes, memory without.
func newBackend(p params, n *numbers) backend {
	if p.Client == nil {
		return &memory{n}
	}
	return &crd{crds: p.CRDs, servers: p.Servers, wanted: p.Wanted, numbers: n, grace: p.Config.Grace}
}

// choice is the number of one label set, if it has one.
type choice struct {
	number  number    // ID 0 without a number
	want    *wanted   // the object to create; nil when one exists or none can be created
	again   time.Time // time of the next attempt; zero for none
	problem error
	why     string // the reason why the labels have no number of the cluster for a long time; empty without one
}

// choose returns the number of one label set: a fixed one for the empty set, otherwise the backend's.
func (c *controller) choose(txn statedb.ReadTxn, in input, key string, s set, now time.Time) choice {
	if len(s.labels) == 0 {
		init := fixed(identity.Init)
		return choice{number: number{init.ID, init.Labels, init.Source}}
	}
	return c.backend.choose(txn, in, key, s, now)
}

// blame names the labels that cause so many label sets. It is computed at most once in a pass.
func (in *input) blame() string {
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

// own returns the number that this node assigned to the labels, and assigns one if there is none.
func (n *numbers) own(key string, s set, source identities.Source) choice {
	if had, found := n.byKey[key]; found && had.Source == source {
		return choice{number: had}
	}
	given, err := n.allocate(s.labels, source)
	return choice{number: given, problem: err}
}

func decimal(id uint32) string { return strconv.FormatUint(uint64(id), 10) }
