package policymaps

import (
	"fmt"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// waiting returns the input that must be read before any policy is decided, "" if there is none.
func (in *inputs) waiting(txn statedb.ReadTxn, changed *statedb.WatchSet, now time.Time) string {
	_, more := in.Sources.AllWatch(txn)
	changed.Add(more)
	for _, name := range in.needed() {
		if why := in.unusable(txn, name); why != "" {
			return why
		}
	}
	if in.Identities.NumObjects(txn) == 0 {
		return "the first identities"
	}
	for _, name := range in.referred() {
		if why := in.unusable(txn, name); why != "" && !in.unreadGroups.over(now) {
			return why
		}
	}
	why := in.behind(txn, changed, now)
	if why == "" {
		in.unreadGroups.end() // a policy that refers to groups or Services later does not delay other policies
	}
	return why
}

// unusable returns why the rows of a table cannot be used yet, "" if they can.
func (in *inputs) unusable(txn statedb.ReadTxn, table string) string {
	row, _, found := in.Sources.Get(txn, sources.ByTable(table))
	switch {
	case !found:
		return "the table " + table + " to be read"
	case !row.Usable():
		return fmt.Sprintf("the table %s: %s: %s", table, row.Producer, row.WaitingFor)
	}
	return ""
}

// synced reports whether all required tables have the list of their source, not the copy on disk. A copy of only the groups of CIDRs or the Services counts
// as their list after [inputTimeout].
func (in *inputs) synced(txn statedb.ReadTxn, now time.Time) bool {
	if row, _, found := in.Sources.Get(txn, sources.ByTable(in.Pods.Name())); found && row.State != sources.Synced {
		return false
	}
	if !sources.Listed(txn, in.Sources, in.needed()...) {
		return false
	}
	for _, name := range in.referred() {
		if in.unusable(txn, name) == "" && !sources.Listed(txn, in.Sources, name) && !in.copied.over(now) {
			return false
		}
	}
	return true
}

// referred returns the tables of groups, Services and EndpointSlices to which policies refer.
func (in *inputs) referred() (tables []string) {
	if len(in.refer) > 0 {
		tables = append(tables, in.CIDRGroups.Name())
	}
	if len(in.services.referred) > 0 || len(in.services.namespaces) > 0 {
		tables = append(tables, in.Services.Name())
	}
	if in.services.byAddresses > 0 {
		tables = append(tables, in.Slices.Name())
	}
	return tables
}

// needed returns the tables without which no policy can be decided. Groups of CIDRs and Services are not among them: while they cannot be read, for example
// without the permission to list them, policies that refer to them fail closed. A tenant who refers to one must not stop the policies of the node.
func (in *inputs) needed() []string {
	tables := []string{in.Namespaces.Name()}
	if in.Config.Kubernetes {
		tables = append(tables, in.KubernetesPolicies.Name())
	}
	if in.Config.Cilium {
		tables = append(tables, in.CiliumPolicies.Name())
	}
	return tables
}

// wait is a timeout of [inputTimeout] for an input that may never arrive. It runs once.
type wait struct {
	since time.Time // first call of over; zero before
	done  bool
}

// over reports whether the timeout has expired or the wait has ended. The first call starts the timeout.
func (w *wait) over(now time.Time) bool {
	if w.since.IsZero() {
		w.since = now
	}
	w.done = w.done || now.Sub(w.since) >= inputTimeout
	return w.done
}

func (w *wait) end() { w.done = true }

// left returns the delay until the timeout expires; 0 if it is not running. With the time of a call of over it is 0 only if over reported true.
func (w *wait) left(now time.Time) time.Duration {
	if w.since.IsZero() || w.done {
		return 0
	}
	return max(inputTimeout-now.Sub(w.since), 0)
}

// expires returns the delay after which the first timeout of a wait for inputs expires; 0 if none is running. All other ends of such a wait close a channel of
// the watch set with which waiting was called.
func (in *inputs) expires(now time.Time) time.Duration {
	return sooner(in.unreadGroups.left(now), in.catchUp.wait.left(now))
}
