package policymaps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/tables/policyclasses"
)

// identityClasses writes the map identity_classes: the classes of the identities of the cluster. It is not safe for concurrent use; the verify job uses it
// with [controller].mu held.
//
// Entries about a class apply to identities that no policy knows. So the classes of an identity are written before any peer may have the identity, and
// removed when no peer can have it.
type identityClasses struct {
	kernel  classMap
	written map[uint32]policycompiler.Classes // contents of the map; identities without classes are left out
	used    map[uint32]bool                   // see [identityClasses.inUse]; nil if it was not computed in this round
	started bool                              // the resolver has the classes of the previous run
	peers   peerState
}

func newIdentityClasses(kernel classMap) *identityClasses { return &identityClasses{kernel: kernel} }

// restore reads the map as the previous run left it.
func (k *identityClasses) restore() (err error) {
	k.written, err = k.kernel.Dump()
	return err
}

func (k *identityClasses) put(id uint32, classes policycompiler.Classes) error {
	if k.written[id] == classes {
		return nil
	}
	if err := k.kernel.Put(id, classes); err != nil {
		return fmt.Errorf("write identity %d to the map identity_classes: %w", id, err)
	}
	if k.written[id] = classes; classes == (policycompiler.Classes{}) {
		delete(k.written, id)
	}
	return nil
}

// inUse reports whether the datapath has a class for an identity by which a peer may be known. If not, entries about the class match nothing.
func (k *identityClasses) inUse(number uint32) bool {
	if k.used == nil {
		k.used = map[uint32]bool{}
		for id, classes := range k.written {
			if k.peers.mayHave(id) {
				k.used[classes.Cluster], k.used[classes.Namespace] = true, true
			}
		}
	}
	return k.used[number]
}

// startClasses gives classes to identities, and entries about classes to policies: in the first round if the previous run did, otherwise when each hook has a
// program of this run and all policies are known. Until then the map is empty. An agent that does not know the map unpins it before it replaces a program. So
// a map that is not empty proves that all programs know classes. Shapes of endpoints prove nothing, because an older agent may have left them.
//
// Classes of the previous run keep their numbers, which its policies name. Identities that were deleted between the runs may still be in use, like identities
// that are deleted later.
func (c *controller) startClasses() {
	if c.classes.started {
		return
	}
	c.classes.started = true
	last := uint32(0)
	for k := range c.store.stale {
		if k.Kind == policycompiler.Class {
			last = max(last, k.Identity)
		}
	}
	for id := range c.classes.written {
		if !c.in.known[id] {
			c.in.leaving[id] = time.Now()
		}
	}
	c.in.resolver.SetClasses(true)
	c.in.resolver.StartClasses(maps.Clone(c.classes.written), last)
}

// writeClasses writes the classes of new identities. It removes classes of identities that no peer can have: of forgotten identities, and of new identities
// whose numbers had other labels before. The caller must have withdrawn these from the map known_identities.
func (c *controller) writeClasses() error {
	_, err1 := c.applyClasses(c.unusedClasses())
	_, err2 := c.applyClasses(func(_ uint32, want policycompiler.Classes) bool { return want != policycompiler.Classes{} })
	return errors.Join(err1, err2)
}

// unusedClasses returns a function that reports whether no peer can have an identity that must have no classes, as far as the last evaluation of endpoints
// shows.
func (c *controller) unusedClasses() func(uint32, policycompiler.Classes) bool {
	previousInUse := c.first || c.store.previousID(c.views.successors) != 0 // the map ipcache may name identities of the previous run that its table does not name
	return func(id uint32, want policycompiler.Classes) bool {
		return want == policycompiler.Classes{} && !previousInUse && !c.inUse(id)
	}
}

// leavesClasses reports whether the next round can remove classes that this round has kept: a round calls writeClasses before it evaluates endpoints.
func (c *controller) leavesClasses() bool {
	unapplied := c.in.resolver.UnappliedClasses()
	if len(unapplied) == 0 {
		return false
	}
	unused := c.unusedClasses()
	return slices.ContainsFunc(unapplied, func(id uint32) bool { return unused(id, c.in.resolver.ClassesOf(id)) })
}

// mayHave implements [peerState]. A peer may be known by an announced identity, a deleted one that may be in use, or one in the map known_identities.
func (c *controller) mayHave(id uint32) bool {
	_, leaving := c.in.leaving[id]
	return leaving || c.announced[id] || c.known.has(id)
}

// mayMatch implements [peerState]. Entries may match if the identity exists and every policy knows it, a peer may have an identity of the class, or the range is
// in the map.
func (c *controller) mayMatch(kind policycompiler.Kind, identity uint32) bool {
	switch kind {
	case policycompiler.Identity:
		return c.announced[identity] && c.in.known[identity]
	case policycompiler.Class:
		return c.classes.inUse(identity)
	case policycompiler.CIDR, policycompiler.CIDROutside:
		return c.cidrs.known[identity]
	}
	return true
}

// inUse reports whether a peer may be known by an identity, in this run or since the previous one.
func (c *controller) inUse(id uint32) bool {
	if c.mayHave(id) || c.views.identities[id] > 0 {
		return true
	}
	for ep := range c.previous.endpointsWith(id) {
		if v, seen := c.views.by[ep]; !seen || v.restored || v.untaken {
			return true
		}
	}
	return false
}

// hasStaleClasses reports whether the datapath has classes of other labels for an identity. No identity is announced until these are removed.
func (c *controller) hasStaleClasses() bool {
	return slices.ContainsFunc(c.in.resolver.UnappliedClasses(), c.stale)
}

func (c *controller) stale(id uint32) bool {
	return c.in.known[id] && c.in.resolver.ClassesOf(id) == policycompiler.Classes{}
}

// clearClasses removes the classes of identities whose labels have changed, while peers may be known by them. The caller must be about to announce
// identities: no policy in use lacks a deny about the identities themselves. Flows that the removed classes allowed are evaluated again.
func (c *controller) clearClasses() error {
	applied, err := c.applyClasses(func(id uint32, _ policycompiler.Classes) bool { return c.stale(id) })
	c.reevaluate = c.reevaluate || applied
	return err
}

// applyClasses writes the classes of identities that the map does not have yet, if due reports true for them. It reports whether it has written some.
func (c *controller) applyClasses(due func(uint32, policycompiler.Classes) bool) (applied bool, err error) {
	for _, id := range c.in.resolver.UnappliedClasses() {
		want := c.in.resolver.ClassesOf(id)
		if !due(id, want) {
			continue
		}
		if err := c.classes.put(id, want); err != nil {
			return applied, err
		}
		c.in.resolver.ClassesApplied(id)
		applied = true
		c.alive()
	}
	return applied, nil
}

// reevaluateFlows makes this round raise the revisions of all endpoints whose policies have entries about classes, including policies of the previous run, if
// flows may have been evaluated with wrong classes.
func (c *controller) reevaluateFlows() {
	if c.reevaluate {
		c.reevaluate, c.reevaluating, c.in.all = false, true, true
	}
}

// showClasses updates the rows of changed classes: see [policycompiler.Resolver.ChangedClasses].
func (c *controller) showClasses(txn statedb.WriteTxn, changed map[uint32]map[string]string) {
	for number, shared := range changed {
		row := &policyclasses.Class{Number: number, Labels: shared, Namespace: shared[labels.SourceK8s+":"+labels.KeyNamespace]}
		if shared == nil {
			_, _, _ = c.ClassTable.Delete(txn, row)
		} else if _, _, found := c.ClassTable.Get(txn, policyclasses.ByNumber(number)); !found {
			_, _, _ = c.ClassTable.Insert(txn, row)
		}
	}
}

// printClasses lists the classes of identities, sorted.
func printClasses(kernel classMap) (string, error) {
	all, err := kernel.Dump()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%d: %d %d\n", id, all[id].Cluster, all[id].Namespace)
	}
	return b.String(), nil
}

// repairClasses writes the differing entries of the map identity_classes again.
func (v *verifier) repairClasses(ctx context.Context) error {
	v.lock(ctx)
	defer v.mu.Unlock()
	have, err := v.Classes.Dump()
	if err != nil {
		return err
	}
	want := v.classes.written
	var differ []uint32
	both := 0
	for id, classes := range want {
		found, exists := have[id]
		if exists {
			both++
		}
		if found != classes {
			differ = append(differ, id)
		}
	}
	if both < len(have) {
		for id := range have {
			if _, wanted := want[id]; !wanted {
				differ = append(differ, id)
			}
		}
	}
	slices.Sort(differ)
	var errs []error
	for _, id := range differ {
		v.Drift.Repairs.Record(driftrepairs.Finding{Kind: driftrepairs.MapEntry, What: bpf.MapIdentityClasses,
			Found: fmt.Sprintf("identity %d has the classes %d and %d, want %d and %d", id, have[id].Cluster, have[id].Namespace, want[id].Cluster, want[id].Namespace)})
		errs = append(errs, v.Classes.Put(id, want[id]))
	}
	if len(differ) > 0 {
		v.reevaluate = true
		v.requestRound()
	}
	return errors.Join(errs...)
}
