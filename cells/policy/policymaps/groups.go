package policymaps

import (
	"maps"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// followGroups reads the changed groups of CIDRs. It returns their previous and their current versions.
func (in *inputs) followGroups(txn statedb.ReadTxn, changed *statedb.WatchSet) (moved []*cilium.CIDRGroup) {
	follow(in, txn, changed, in.cidrGroups, func(g *cilium.CIDRGroup, gone bool) {
		if old := in.groups[g.Name]; old != nil {
			moved = append(moved, old)
		}
		if gone {
			delete(in.groups, g.Name)
			return
		}
		in.groups[g.Name] = g
		moved = append(moved, g)
	})
	return moved
}

// readAgain parses the policies again that refer to one of the groups moved, or to any group if all is true. It reads all policies from one snapshot, so a
// change of a group has the effect of one change of all these policies.
func (in *inputs) readAgain(txn statedb.ReadTxn, moved []*cilium.CIDRGroup, all bool) {
	for _, name := range slices.Sorted(maps.Keys(in.refer)) {
		p := in.refer[name]
		if !all && !slices.ContainsFunc(moved, p.RefersTo) {
			continue
		}
		in.parseAgain(txn, p.Ref)
		in.alive()
	}
}

// parseAgain parses a policy of Cilium's whose object is unchanged.
func (in *inputs) parseAgain(txn statedb.ReadTxn, ref policy.Ref) {
	if o, _, found := in.CiliumPolicies.Get(txn, ciliumPolicy(ref)); found {
		in.policy(policy.FromCilium(o, in.env), false)
	}
}

// ciliumPolicy returns the query for the object of a policy of Cilium's.
func ciliumPolicy(ref policy.Ref) statedb.Query[*cilium.Policy] {
	return cilium.PolicyByName((&cilium.Policy{Namespace: ref.Namespace, Name: ref.Name}).Key())
}
