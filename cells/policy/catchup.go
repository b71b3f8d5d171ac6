package policy

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// catchUp lasts from the start of the agent until all that policies are made from is of one time. Other cells make labels and
// identities of what is read, each a moment later. Policies of now for labels of the run before would be neither what was
// enforced nor what shall be: they may leave out a pod that both isolate. So until then what is enforced stays.
type catchUp struct {
	over  bool
	since time.Time // when something was behind that is read; zero while nothing is
}

// patience bounds how long all endpoints wait for what one of them lacks, such as an identity that cannot be had.
const patience = 10 * time.Second

// behind says what has not come as far as the rows from which it is made, or nothing.
func (in *inputs) behind(txn statedb.ReadTxn, changed *statedb.WatchSet, now time.Time) string {
	c := &in.catchUp
	if c.over {
		return ""
	}
	if why := in.unread(txn); why != "" {
		return why
	}
	why := in.unmade(txn, changed)
	switch {
	case why == "":
		c.since = time.Time{}
	case c.since.IsZero():
		c.since = now
	}
	if why != "" && now.Sub(c.since) < patience {
		return why
	}
	c.over = in.synced(txn, now)
	return ""
}

// unread names a table that matters to what is enforced already, and that somebody fills but has not read yet.
func (in *inputs) unread(txn statedb.ReadTxn) string {
	for _, name := range []string{in.Pods.Name(), in.Remote.Name(), in.CiliumIdentities.Name(), in.Slices.Name(), in.KubernetesNodes.Name(), in.CiliumNodes.Name()} {
		if row, _, found := in.Sources.Get(txn, sources.ByTable(name)); found && !row.Usable() {
			return fmt.Sprintf("the table %s: %s: %s", name, row.Producer, row.WaitingFor)
		}
	}
	return ""
}

// unmade names an endpoint of the run before whose labels, ports or identity are not those of its pod, or an identity of the cluster
// that is not known.
func (in *inputs) unmade(txn statedb.ReadTxn, changed *statedb.WatchSet) string {
	if done, initialized := in.Endpoints.Initialized(txn); !done {
		changed.Add(initialized)
		return "the endpoints of the run before"
	}
	if done, initialized := in.NodeAddresses.Initialized(txn); !done {
		changed.Add(initialized)
		return "the addresses of the node"
	}
	if name := clusternodes.Unresolved(txn, in.KubernetesNodes, in.CiliumNodes, in.Nodes); name != "" {
		_, more := in.Nodes.AllWatch(txn)
		changed.Add(more)
		return "the addresses and ranges of the node " + name
	}
	restored := false
	for id, ep := range in.subjects {
		restored = restored || ep.Restored
		pod, _, found := in.Pods.Get(txn, k8s.PodByName(ep.PodName()))
		if !ep.Restored || ep.Quarantine != "" || !found || !pod.HasUID(ep.K8sUID) {
			continue
		}
		if !maps.Equal(ep.Labels, in.labels(txn, ep)) {
			return fmt.Sprintf("the labels of endpoint %d (%s)", id, ep.PodName())
		}
		if in.listed && !slices.Equal(ep.Ports, pod.Ports) {
			return fmt.Sprintf("the named ports of endpoint %d (%s)", id, ep.PodName())
		}
		number, found := identities.Of(txn, in.Of, id, ep.AttachmentID())
		if !found || number.Source != identities.Reserved && !maps.Equal(number.Labels, in.Filter.Relevant(ep.Labels)) {
			return fmt.Sprintf("the identity of endpoint %d (%s)", id, ep.PodName())
		}
	}
	if !restored {
		return "" // nobody's policy lacks anything
	}
	for row := range in.CiliumIdentities.All(txn) {
		if _, _, found := in.Identities.Get(txn, identities.ByID(row.ID)); !found {
			return fmt.Sprintf("identity %d", row.ID)
		}
	}
	return ""
}
