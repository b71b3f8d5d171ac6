package ipcachemaps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/policyprogress"
	"github.com/waggle-net/waggle/pkg/tables/refusedclaims"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	settle   = 10 * time.Millisecond // debounce interval: the pods of a burst become one batch and one change of the epoch
	minRetry = 100 * time.Millisecond
	maxRetry = time.Minute
)

type remoteParams struct {
	cell.In

	DB         *statedb.DB
	Settings   agentconfig.Agent
	Pods       statedb.Table[*cilium.Endpoint]
	Nodes      statedb.Table[*nodes.Node]
	Local      statedb.Table[*endpoints.Endpoint]
	Identities statedb.Table[*identities.Identity]
	Progress   statedb.Table[policyprogress.Progress]
	Refused    statedb.RWTable[refusedclaims.Refused]
	Writer     *writer
	Kernel     kernel
}

// remote claims the addresses of pods of other nodes.
type remote struct {
	remoteParams

	claimChecker
	pods
	changes  *changefeed.Feed[*cilium.Endpoint]
	here     *changefeed.Feed[*endpoints.Endpoint]
	addrs    map[uint16][2]netip.Addr // addresses of the endpoints of this node, by local id
	pending  map[netip.Addr]struct{}  // addresses whose identity not all policies include yet
	rejected map[netip.Addr]rejection
	// kept are addresses whose entry of the previous run stays, because the objects may be an old copy and name another identity.
	kept map[netip.Addr]struct{}
}

// rejection is a rejected claim: the reason, and the preferred object of the address.
type rejection struct {
	reason refusedclaims.Reason
	by     *cilium.Endpoint
}

func newRemote(p remoteParams) *remote {
	return &remote{remoteParams: p, claimChecker: claimChecker{self: p.Settings.NodeName, local: map[netip.Addr]int{}}, pods: newPods(),
		addrs: map[uint16][2]netip.Addr{}, pending: map[netip.Addr]struct{}{}, rejected: map[netip.Addr]rejection{},
		kept: map[netip.Addr]struct{}{}}
}

func registerRemote(jobs job.Group, p remoteParams) {
	watchdog.AddRetried(jobs, "claim-remote-pods", newRemote(p).run, minRetry, maxRetry)
}

// run is incremental, because a node may know tens of thousands of pods. It starts when the first policies are in the maps; until then the entries of the
// previous run stay in force.
func (r *remote) run(ctx context.Context, health cell.Health) error {
	if err := r.subscribe(); err != nil {
		return err
	}
	for {
		txn := watchdog.Snapshot(ctx, r.DB, r.Progress)
		changed := statedb.NewWatchSet()
		_, _, progress, begun := r.Progress.GetWatch(txn, policyprogress.Row)
		changed.Add(progress)
		if begun {
			txn = watchdog.Snapshot(ctx, r.DB, r.Pods, r.Nodes, r.Local, r.Progress)
			complete := r.inputsComplete(txn, changed)
			touched := r.follow(txn, changed)

			put, remove := r.compute(txn, touched, complete)

			r.Writer.Update(ipcache.OwnerCiliumEndpoints, put, remove, complete)
			if err := r.report(health, complete); err != nil {
				return err
			}
		} else {
			health.OK("waiting for the first policies in the maps")
		}
		next := time.Now().Add(settle)
		watchdog.Idle(ctx)
		if _, err := changed.Wait(ctx, 0); err != nil { // an error of ctx
			break
		}
		if rest := time.Until(next); rest > 0 && watchdog.Sleep(ctx, rest) != nil {
			break
		}
	}
	r.close()
	return nil
}

// subscribe follows the objects from the first one on. A retry continues where the previous attempt ended.
func (r *remote) subscribe() error {
	if r.changes != nil {
		return nil
	}
	txn := r.DB.WriteTxn(r.Pods, r.Local, r.Nodes)
	defer txn.Commit()
	var errs [3]error
	r.changes, errs[0] = changefeed.Follow(txn, r.Pods)
	r.here, errs[1] = changefeed.Follow(txn, r.Local)
	r.claimChecker.nodes, errs[2] = clusternodes.Follow(txn, r.Nodes)
	if err := errors.Join(errs[:]...); err != nil {
		r.close()
		r.changes = nil
		return err
	}
	return nil
}

func (r *remote) close() {
	r.changes.Close()
	r.here.Close()
	r.claimChecker.nodes.Close()
}

func (r *remote) inputsComplete(txn statedb.ReadTxn, changed *statedb.WatchSet) bool {
	complete := true
	for _, t := range []statedb.TableMeta{r.Pods, r.Nodes, r.Local, r.Identities} {
		if done, initialized := t.Initialized(txn); !done {
			complete = false
			changed.Add(initialized)
		}
	}
	return complete
}

// follow applies all changes and returns the addresses whose claim may change.
func (r *remote) follow(txn statedb.ReadTxn, changed *statedb.WatchSet) map[netip.Addr]struct{} {
	touched := make(map[netip.Addr]struct{})
	for addr := range r.pending {
		touched[addr] = struct{}{}
	}
	for _, change := range r.changes.UpTo(txn, changed) {
		r.pods.apply(change, touched)
	}
	for _, change := range r.here.UpTo(txn, changed) {
		r.followLocal(change, touched)
	}
	// Of a changed node it touches only the addresses whose claim may change.
	r.claimChecker.nodes.UpTo(txn, changed, func(before, after *nodes.Node) { r.touch(before, after, touched) })
	return touched
}

// followLocal applies the addresses of one endpoint of this node.
func (r *remote) followLocal(change statedb.Change[*endpoints.Endpoint], touched map[netip.Addr]struct{}) {
	ep, before := change.Object, r.addrs[change.Object.ID]
	now := [2]netip.Addr{ep.IPv4, ep.IPv6}
	if change.Deleted {
		now = [2]netip.Addr{}
	}
	if now == before {
		return
	}
	if r.addrs[ep.ID] = now; change.Deleted {
		delete(r.addrs, ep.ID)
	}
	for i := range now {
		r.hold(before[i], -1, touched)
		r.hold(now[i], 1, touched)
	}
}

// hold adds n to the number of local endpoints with an address.
func (r *remote) hold(addr netip.Addr, n int, touched map[netip.Addr]struct{}) {
	if !addr.IsValid() {
		return
	}
	touched[addr] = struct{}{}
	if r.local[addr] += n; r.local[addr] == 0 {
		delete(r.local, addr)
	}
}

// compute decides the claims of the touched addresses. Once the objects are complete, it also decides the kept addresses.
func (r *remote) compute(txn statedb.ReadTxn, touched map[netip.Addr]struct{}, complete bool) (put []ipcache.Claim, remove []netip.Prefix) {
	if complete {
		maps.Copy(touched, r.kept)
	}
	for addr := range touched {
		delete(r.pending, addr)
		delete(r.rejected, addr)
		delete(r.kept, addr)
		prefix := netip.PrefixFrom(addr, addr.BitLen())
		ep := r.believed(addr)
		if ep == nil {
			if r.claimedBy(addr) != nil {
				r.claim(addr, nil)
				remove = append(remove, prefix)
			}
			continue
		}
		if !complete && r.keeps(prefix, ep) {
			r.kept[addr] = struct{}{}
			continue
		}
		identity := r.identity(txn, addr, ep) // reads the previous claim, so it must precede claim
		r.claim(addr, ep)
		put = append(put, ipcache.Claim{Prefix: prefix, Identity: identity, Node: r.claimChecker.nodes.HostOf(ep), Source: ipcache.SourceRemote})
	}
	return put, remove
}

// keeps reports whether the entry of the previous run stays. That entry is never older than a copy of the objects, and the copy may name a previous owner of
// the address or a previous identity of the pod.
func (r *remote) keeps(prefix netip.Prefix, ep *cilium.Endpoint) bool {
	if r.claimedBy(prefix.Addr()) != nil {
		return false
	}
	have, found, err := r.Kernel.Get(prefix)
	return err != nil || found && have.Identity != ep.Identity()
}

// believed returns the newest object with a plausible claim of an address; nil when there is none.
func (r *remote) believed(addr netip.Addr) *cilium.Endpoint {
	if addr.Is4() && !r.Settings.EnableIPv4 || addr.Is6() && !r.Settings.EnableIPv6 {
		return nil
	}
	for ep := range r.At(addr) {
		why, ours := r.checkClaim(ep, addr)
		switch {
		case why != "":
			r.rejected[addr] = rejection{why, ep}
		case !ours:
			return ep
		}
	}
	return nil
}

// identity returns the identity number to write for a pod. A number that not all policies include must not reach the datapath, because the policies would
// neither allow nor deny it. Until then the pod keeps its previous number, or the entry of the previous run if that has the same number. Without either it
// returns 0 (unknown), and the datapath drops the pod's packets.
func (r *remote) identity(txn statedb.ReadTxn, addr netip.Addr, ep *cilium.Endpoint) uint32 {
	switch {
	case ep.Identity() == 0:
		return 0
	case !isOfCluster(ep.Identity()):
		r.rejected[addr] = rejection{refusedclaims.Identity, ep}
		return 0
	case policyprogress.Resolved(txn, r.Progress, r.Identities, ep.Identity()):
		return ep.Identity()
	}
	r.pending[addr] = struct{}{}
	prefix := netip.PrefixFrom(addr, addr.BitLen())
	before := r.claimedBy(addr)
	if before != nil {
		if before.SameObject(ep) {
			return r.Writer.identity(ipcache.OwnerCiliumEndpoints, prefix)
		}
		return 0 // the previous number is another pod's
	}
	if have, found, err := r.Kernel.Get(prefix); err == nil && found && have.Identity == ep.Identity() {
		return ep.Identity()
	}
	return 0
}

// report writes the rejected claims to the table and to health. Until all inputs are complete, rejected claims do not degrade health, because their nodes may
// not be known yet.
func (r *remote) report(health cell.Health, complete bool) error {
	rows := r.sumUp()
	var errs []error
	for _, reason := range slices.Sorted(maps.Keys(rows)) {
		errs = append(errs, fmt.Errorf("%s: %d, such as %s", reason, rows[reason].Count, rows[reason].Example))
	}
	if err := r.commitRejected(rows); err != nil {
		return err
	}
	if len(errs) > 0 && complete {
		health.Degraded(fmt.Sprintf("%d addresses of pods on other nodes are rejected; see the table refused-claims", len(r.rejected)),
			errors.Join(errs...))
		return nil
	}
	health.OK(fmt.Sprintf("%d addresses of pods on other nodes, %d wait for policies", r.addresses, len(r.pending)))
	return nil
}

// sumUp counts the rejected claims by reason. The example of a row is the lowest address, so that it is stable.
func (r *remote) sumUp() map[refusedclaims.Reason]refusedclaims.Refused {
	lowest, rows := map[refusedclaims.Reason]netip.Addr{}, map[refusedclaims.Reason]refusedclaims.Refused{}
	for addr, why := range r.rejected {
		if low, found := lowest[why.reason]; !found || addr.Less(low) {
			lowest[why.reason] = addr
		}
		rows[why.reason] = refusedclaims.Refused{Reason: why.reason, Count: rows[why.reason].Count + 1}
	}
	for reason, addr := range lowest {
		row := rows[reason]
		row.Example = printable.Text(fmt.Sprintf("%s of CiliumEndpoint %s", addr, r.rejected[addr].by.Key()))
		rows[reason] = row
	}
	return rows
}

func (r *remote) commitRejected(want map[refusedclaims.Reason]refusedclaims.Refused) error {
	if len(want) == 0 && r.Refused.NumObjects(r.DB.ReadTxn()) == 0 {
		return nil
	}
	txn := r.DB.WriteTxn(r.Refused)
	defer txn.Abort()
	reason := func(row refusedclaims.Refused) refusedclaims.Reason { return row.Reason }
	if err := rows.Replace(txn, r.Refused, r.Refused.All(txn), want, reason, rows.Identical); err != nil {
		return err
	}
	txn.Commit()
	return nil
}
