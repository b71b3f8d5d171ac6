package policy

import (
	"maps"
	"reflect"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/changes"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// asked is what a policy that refers to Services was made from.
type asked struct {
	policy *policy.Policy
	slices map[string]<-chan struct{} // by "namespace/name" of each chosen Service; nil when its addresses do not matter
}

// services follow Services while a policy refers to one. On a node without such a policy no Service and no slice is a reason for a round.
type services struct {
	asked map[string]asked // by the reference of the policy
	feed  *changes.Feed[*k8s.Service]
	began bool // feed is new: of what was deleted before it began it hands over nothing, so all policies are parsed again
}

// parse parses a policy of Cilium's with the groups and Services of a snapshot.
func (in *inputs) parse(txn statedb.ReadTxn, o *cilium.Policy) *policy.Policy {
	of := asked{slices: map[string]<-chan struct{}{}}
	env := in.env
	env.Services = in.Inputs.ServicesAt(txn, func(key string, changed <-chan struct{}) { of.slices[key] = changed })
	of.policy = policy.FromCilium(o, env)
	name := of.policy.Ref.String()
	if delete(in.services.asked, name); len(of.policy.Services) > 0 {
		in.services.asked[name] = of
	}
	return of.policy
}

// parseAgain parses a policy of which something has changed to which it refers. A policy that means the same as before is no change.
func (in *inputs) parseAgain(txn statedb.ReadTxn, ref policy.Ref) {
	key := (&cilium.Policy{Namespace: ref.Namespace, Name: ref.Name}).Key()
	if o, _, found := in.CiliumPolicies.Get(txn, cilium.PolicyByName(key)); found {
		if p := in.parse(txn, o); !reflect.DeepEqual(p, in.policies[ref.String()]) {
			in.moved = true
			in.policy(p, false)
		}
	}
	in.alive()
}

// followServices parses the policies again of which a Service, or an address of one, has changed.
func (in *inputs) followServices(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	s := &in.services
	if s.feed == nil {
		return
	}
	rows := s.feed.UpTo(txn, changed)
	for _, name := range slices.Sorted(maps.Keys(s.asked)) {
		of := s.asked[name]
		again := s.began || slices.ContainsFunc(rows, func(change statedb.Change[*k8s.Service]) bool {
			_, chosen := of.slices[change.Object.Key()]
			return chosen || of.policy.AsksFor(change.Object)
		})
		for _, slices := range of.slices {
			again = again || isClosed(slices)
		}
		if again {
			in.parseAgain(txn, of.policy.Ref)
		}
	}
	s.began = false
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false // also when it is nil
	}
}

// awaitServices adds to changed what closes when a Service or an address of one changes that some policy means.
func (in *inputs) awaitServices(changed *statedb.WatchSet) {
	s := &in.services
	if len(s.asked) == 0 {
		s.feed.Close()
		s.feed = nil
		return
	}
	if s.feed == nil {
		txn := in.DB.WriteTxn(in.Services)
		feed, err := changes.Follow(txn, in.Services)
		txn.Commit()
		if err != nil {
			panic(err) // the transaction holds the table
		}
		s.feed, s.began = feed, true
		now := make(chan struct{})
		close(now)
		changed.Add(now) // the next round has a snapshot that is not older than the feed
	}
	for _, of := range s.asked {
		for _, slices := range of.slices {
			if slices != nil {
				changed.Add(slices)
			}
		}
	}
}
