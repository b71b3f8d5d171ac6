package identity

import (
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// backend is where numbers of label sets come from: [memory] or [crd]. It is asked by one goroutine, in each pass about every
// set that endpoints have, and keeps nothing but what stands in numbers and tables.
type backend interface {
	// choose finds the number of one set of labels, of which there is at least one. The controller remembers it, and takes it
	// back from another set that had it.
	choose(txn statedb.ReadTxn, in input, key string, s set, now time.Time) choice
}

// newBackend is the one place that decides where numbers come from.
func newBackend(p params, n *numbers) backend {
	if p.Client == nil {
		return &memory{n}
	}
	return &crd{crds: p.CRDs, servers: p.Servers, wanted: p.Wanted, numbers: n, grace: p.Config.Grace}
}

// choice is the number of one set of labels, as far as there is one.
type choice struct {
	number  number    // ID 0 while there is none
	want    *wanted   // the object that should be made; nil when there is one or none can be made
	again   time.Time // when to choose again; zero for never
	problem error
	why     string // what keeps the labels from a number of the cluster for long; empty when nothing does
}

// choose finds the number of one set of labels: a fixed one for none, and for others that of the backend.
func (c *controller) choose(txn statedb.ReadTxn, in input, key string, s set, now time.Time) choice {
	if len(s.labels) == 0 {
		init := fixed(identity.Init)
		return choice{number: number{init.ID, init.Labels, init.Source}}
	}
	return c.backend.choose(txn, in, key, s, now)
}

// blame names the labels that make so many label sets of endpoints. It is worked out once in a pass.
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

// own is the number that the labels have from this node; without one they are given one.
func (n *numbers) own(key string, s set, source identities.Source) choice {
	if had, found := n.byKey[key]; found && had.Source == source {
		return choice{number: had}
	}
	given, err := n.allocate(s.labels, source)
	return choice{number: given, problem: err}
}

func decimal(id uint32) string { return strconv.FormatUint(uint64(id), 10) }
