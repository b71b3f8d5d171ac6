package policymaps

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/policyprogress"
)

// taken reports whether the datapath has applied the published row of an endpoint. No packet of an endpoint without facts passes, so its row counts as
// applied, unless the maps may still have its slot of the previous run: endpoint-maps removes slots without facts when the table of facts is complete.
func (c *controller) taken(txn statedb.ReadTxn, ep *endpoints.Endpoint, row *endpointpolicies.EndpointPolicy) bool {
	f, _, found := c.Facts.Get(txn, bpfendpoints.FactsByID(ep.ID))
	if !found {
		all, _ := c.Facts.Initialized(txn)
		return all || !c.previous.mayHaveSlot(ep)
	}
	return f.Status.Kind == reconciler.StatusKindDone && int(f.IfIndex) == ep.HostIfIndex && f.Ingress == row.Ingress &&
		f.Egress == row.Egress && f.PolicyRevision == row.Revision
}

// publish writes the policies of each endpoint, and the identity by which peers may know it. The maps have all entries of the published policies,
// and all address ranges that these entries are about.
//
// Endpoints change to other policy ids first. A new identity is announced only when the datapath has applied all these changes, because until then an
// endpoint may have a policy that does not know the identity.
func (c *controller) publish(txn statedb.ReadTxn, w *wanted) {
	if !w.idle && c.store.moved { // endpoints with unchanged rows may have other ids, or another error
		w.ids = slices.Sorted(maps.Keys(c.views.by))
	}
	rows := make(map[uint16]*endpointpolicies.EndpointPolicy, len(w.ids))
	for _, id := range w.ids {
		v := c.views.by[id]
		if !v.exists {
			continue
		}
		row, changed := c.row(v, id)
		rows[id] = row
		w.flips = w.flips || changed && v.own
		for i, policy := range idsOf(row) {
			if policy > 1 && c.store.byID[policy] == nil && !c.beyondLimit(v.of[i]) {
				w.kept = append(w.kept, v.of[i])
			}
		}
	}
	if known := c.in.knownTo; !w.unwritten && known != c.announcedTo && len(c.views.untaken) == 0 && !w.flips && (w.idle || !c.open(w)) {
		if c.hasStaleClasses() {
			err := c.clearClasses()
			c.note(err)
			w.again = err == nil
		} else {
			c.announceArrived()
			c.announcedTo = known
		}
	}
	if !w.unwritten && c.announcedTo > 0 {
		c.note(c.known.announce())
	}
	if !w.idle {
		c.raiseRevisions(w, rows)
	}
	c.commit(txn, w, rows)
}

// announceArrived announces the identities that were added since the last call, so that peers may have them.
func (c *controller) announceArrived() {
	for _, id := range c.in.arrived {
		if c.in.known[id] {
			c.announced[id] = true
			c.known.add(id)
		}
	}
	c.in.arrived = nil
}

// open reports whether a policy in use may lack a deny about a new identity: a deny that could not be written, or a deny of an endpoint that keeps an
// outdated policy.
func (c *controller) open(w *wanted) bool {
	if len(c.previous.denies) > 0 {
		for _, unchanged := range c.views.restored {
			if unchanged {
				return true
			}
		}
	}
	if len(w.kept) > 0 && (len(c.previous.denies) > 0 || slices.ContainsFunc(w.kept, deniesIdentities)) {
		c.note(errors.New("a policy of the previous run is outdated and may lack denies about new identities: no new identity is announced"))
		return true
	}
	for _, h := range c.store.byID {
		switch {
		case h.users == 0:
		case h.open:
			return true
		case c.lacksDenies(h.id):
			c.note(fmt.Errorf("policy %d is incomplete and may lack denies about new identities: no new identity is announced", h.id))
			return true
		}
	}
	return false
}

func deniesIdentities(compiled *policycompiler.Compiled) bool {
	if compiled == nil {
		return false
	}
	if compiled.TooLarge() {
		return compiled.Denies() // its entries are not known
	}
	for e := range compiled.Entries() {
		if e.Deny && ofIdentities(e.Kind) {
			return true
		}
	}
	return false
}

// ofIdentities reports whether a new identity may need entries of a kind: entries about itself, or about a class that is new with it.
func ofIdentities(kind policycompiler.Kind) bool {
	return kind == policycompiler.Identity || kind == policycompiler.Class
}

// row returns the desired row of an endpoint, without its identity, and reports whether its policies change. In a direction for which the maps do not have the
// desired policy, the endpoint keeps its current one or is cut off, and a new endpoint has none.
func (c *controller) row(v view, id uint16) (row *endpointpolicies.EndpointPolicy, changed bool) {
	ep, previous := c.in.subjects[id], v.published()
	next := &endpointpolicies.EndpointPolicy{EndpointID: id, Attachment: ep.AttachmentID(), Revision: c.revision}
	if previous != nil {
		copied := *previous
		next = &copied
		next.Error = ""
	}
	before, had := c.previous.slot(ep)
	restores := had && previous == nil && c.previous.settled
	doubt := c.in.doubt(ep)
	if doubt == "" {
		doubt = c.previous.widens(ep, v.of, len(c.in.policies))
	}
	var errs []error
	for i, direction := range [...]*endpointpolicies.Decision{&next.Ingress, &next.Egress} {
		enforced, audited := v.of[2*i], v.of[2*i+1]
		desired, err1, err2 := c.decision(enforced, audited, v.isolated[i])
		errs = append(errs, err1, err2)
		if restores && err1 != nil {
			*direction = before.decision(2*i, v.isolated[i] && c.previous.isolates(before.ids[2*i]))
		}
		switch {
		case err1 != nil && c.mustCutOff(*direction, enforced, v.isolated[i]):
			*direction = endpointpolicies.Decision{Isolated: v.isolated[i]}
		case err1 != nil && err2 != nil && c.lacksDenies(direction.Audited.ID):
			direction.Audited = endpointpolicies.Policy{}
		case err1 == nil && doubt == "":
			*direction = desired
		}
	}
	if err := errors.Join(errs...); err != nil {
		next.Error = err.Error()
	} else if doubt != "" {
		next.Error = "waiting for " + doubt
	}
	return next, previous != nil && (previous.Ingress != next.Ingress || previous.Egress != next.Egress)
}

// beyondLimit reports whether a desired policy is beyond the quota of its namespace, or the policies of a namespace exceed another limit.
func (c *controller) beyondLimit(desired *policycompiler.Compiled) bool {
	h := c.store.by[desired]
	return h != nil && desired.Namespace() != "" && (errors.Is(h.err, errQuota) || errors.Is(h.err, errRules))
}

// oversized reports whether a desired policy of a namespace does not fit into empty maps, where namespaces have no quota.
func (c *controller) oversized(desired *policycompiler.Compiled) bool {
	h := c.store.by[desired]
	if h == nil || desired.Namespace() == "" || !errors.Is(h.err, errFull) {
		return false
	}
	entries, ranges := desired.Len()
	return desired.TooLarge() || !(capacity{entries, ranges}).fits(c.store.capacity)
}

// mustCutOff reports whether an endpoint must drop all packets in a direction rather than keep its policy, because its namespace prevents the desired one.
// There are two reasons. A kept policy that may lack denies about new identities or ranges would delay the identities and ranges of all other namespaces. And a
// tenant must not avoid a cluster-wide policy by exceeding a limit: the kept policy must have all rules that deny, and isolate the endpoint if the desired one
// does.
func (c *controller) mustCutOff(kept endpointpolicies.Decision, desired *policycompiler.Compiled, isolated bool) bool {
	id := kept.Enforced.ID
	if !c.beyondLimit(desired) && (id != 1 || !c.oversized(desired)) {
		return false
	}
	if id == 0 || c.lacksDenies(id) || isolated && !kept.Isolated {
		return id != 0
	}
	h := c.store.byID[id]
	switch {
	case h == nil: // of the previous run, or allows everything
		return desired.Denies()
	case h.target == desired:
		return false // its denies are written: see [store.reject]
	}
	return desired.DeniesBeyond(h.is)
}

// lacksDenies reports whether a policy id may lack a deny about a new identity or address range.
func (c *controller) lacksDenies(id uint32) bool {
	h := c.store.byID[id]
	if h == nil {
		return c.previous.denies[id]
	}
	return h.open || h.is != nil && !c.store.current[h.is] && (deniesIdentities(h.is) || h.is.DeniesByLabels())
}

// decision returns the policy ids of a direction, and the errors of the enforced and of the audited one. An error about the audited policy does not prevent the
// enforced one.
func (c *controller) decision(enforced, audited *policycompiler.Compiled, isolated bool) (d endpointpolicies.Decision, err1, err2 error) {
	d.Enforced, err1 = c.idOf(enforced)
	if audited != nil {
		d.Audited, err2 = c.idOf(audited)
	}
	d.Isolated = isolated
	return d, err1, err2
}

func (c *controller) idOf(compiled *policycompiler.Compiled) (endpointpolicies.Policy, error) {
	if compiled == nil {
		return endpointpolicies.Policy{}, errors.New("its policy is not compiled")
	}
	if compiled.AllowsAll() {
		return endpointpolicies.Policy{ID: 1}, nil
	}
	h := c.store.by[compiled]
	switch {
	case h == nil:
		return endpointpolicies.Policy{}, errors.New("its policy has no number")
	case !h.complete(compiled):
		return endpointpolicies.Policy{}, c.incomplete(h)
	case c.waiting[compiled]:
		return endpointpolicies.Policy{}, errors.New("waiting for address ranges")
	}
	return endpointpolicies.Policy{ID: h.id, Shape: compiled.Shape()}, nil
}

// incomplete returns an error with the reason why the maps do not have a policy, and with the remedy.
func (c *controller) incomplete(h *mapPolicy) error {
	if errors.Is(h.err, errQuota) {
		return fmt.Errorf("policy %d: %w. Have fewer or wider rules in namespace %s (%s), or raise --policy-entries-per-namespace", h.id, h.err, h.target.Namespace(),
			printable.List(h.policies, maxNames))
	}
	if errors.Is(h.err, errRules) {
		return fmt.Errorf("policy %d: %w. Have fewer or wider rules, or fewer policies for one endpoint (%s)", h.id, h.err, printable.List(h.policies, maxNames))
	}
	if errors.Is(h.err, errFull) {
		return fmt.Errorf("policy %d: %w. The costliest are %s. Have fewer or wider rules, or raise --bpf-policy-map-max", h.id, h.err,
			c.store.costliest())
	}
	return fmt.Errorf("policy %d: %w", h.id, h.err)
}

// datapathIdentity returns the identity by which the datapath knows an endpoint; 0 for none.
func (c *controller) datapathIdentity(previous *endpointpolicies.EndpointPolicy, id uint16) uint32 {
	if previous != nil {
		return previous.Identity
	}
	before, had := c.previous.slot(c.in.subjects[id])
	if !had {
		return 0
	}
	return before.identity
}

// raiseRevisions gives a new revision to the rows of endpoints for which established flows may have to be evaluated differently.
func (c *controller) raiseRevisions(w *wanted, rows map[uint16]*endpointpolicies.EndpointPolicy) {
	narrowed := map[uint32]bool{}
	for _, h := range c.store.byID {
		narrowed[h.id], h.narrowed = h.narrowed, false
	}
	raise := false
	for _, id := range w.ids {
		previous := c.views.by[id].published()
		if previous == nil {
			continue
		}
		shapes := [4]uint32{0: rows[id].Ingress.Enforced.Shape, 2: rows[id].Egress.Enforced.Shape}
		for i, now := range idsOf(rows[id]) {
			wrong := c.reevaluating && shapes[i]&policycompiler.ShapeClasses != 0
			if i%2 == 0 && (now != idsOf(previous)[i] || narrowed[now] || wrong) {
				raise = true
				rows[id].Revision = c.revision + 1
			}
		}
	}
	if c.reevaluating = false; raise {
		c.revision++
	}
}

// commit writes the changed rows. It marks the endpoints that the next round must evaluate: endpoints whose row was written or deleted, and endpoints that
// wait for something else than a row of their own.
func (c *controller) commit(txn statedb.ReadTxn, w *wanted, rows map[uint16]*endpointpolicies.EndpointPolicy) {
	write := c.DB.WriteTxn(c.Published, c.Progress)
	defer write.Abort()
	all := true
	for _, id := range w.ids {
		row, v := rows[id], c.views.by[id]
		previous := v.published()
		if row == nil {
			if v.row != nil {
				_, _, _ = c.Published.Delete(write, v.row)
				c.in.marked[id] = true
			}
			continue
		}
		if previous == nil && row.Error != "" && c.previous.has(c.in.subjects[id]) {
			all = false
			c.note(fmt.Errorf("endpoint %d keeps the policies of the previous run: %s", id, row.Error))
			continue
		}
		number, found := identities.Of(txn, c.Of, id, row.Attachment)
		switch current := c.datapathIdentity(previous, id); {
		case found && c.announced[number.Identity]:
			row.Identity = number.Identity
		case found && current != 0:
			row.Identity = current // a restored endpoint gets its row without waiting for the announcement: see [previousRun.mayPass]
		case previous == nil:
			all, w.late = all && !c.previous.mayPass(c.in.subjects[id], w.replaced), true
			c.in.marked[id] = true
			continue // the endpoint has no announced identity yet
		}
		if row.Error != "" || found && row.Identity != number.Identity {
			c.in.marked[id] = true
		}
		if previous == nil || !previous.Equal(row) {
			w.written, c.in.marked[id] = true, true
			_, _, facts := c.Facts.Get(txn, bpfendpoints.FactsByID(id))
			w.rewritten = w.rewritten || previous != nil || facts || c.in.subjects[id].Quarantine != ""
			c.last.untaken = append(c.last.untaken, id)
			_, _, _ = c.Published.Insert(write, row)
		}
	}
	restored, _ := c.Endpoints.Initialized(txn)
	identified, _ := c.Of.Initialized(txn)
	if !c.complete && restored && identified && all {
		c.Initialize(write)
		c.complete = true
	}
	progress := policyprogress.Progress{Identities: c.announcedTo, Revision: c.revision}
	if old, _, _ := c.Progress.Get(write, policyprogress.Row); old != progress && c.announcedTo > 0 {
		_, _, _ = c.Progress.Insert(write, progress)
	}
	write.Commit()
	c.first = false
}
