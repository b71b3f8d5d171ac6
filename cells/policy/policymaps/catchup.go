package policymaps

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// catchUp delays decisions after the start of the agent until all inputs of policies have the same state. Other cells derive labels and identities from the
// tables, each a moment later. Current policies with labels of the previous run match neither the previous nor the current state: they may not isolate a pod
// that both states isolate. Until the inputs agree, the enforced policies stay.
type catchUp struct {
	over bool
	wait wait // for derived rows that are outdated, after all tables were read
}

// inputTimeout is the longest time for which all endpoints wait for an input of one, such as an identity that cannot be obtained.
const inputTimeout = 10 * time.Second

// behind returns the table or the derived row that is not up to date yet, "" if all are.
func (in *inputs) behind(txn statedb.ReadTxn, changed *statedb.WatchSet, now time.Time) string {
	c := &in.catchUp
	if c.over {
		return ""
	}
	if why := in.unread(txn); why != "" {
		return why
	}
	if why := in.unmade(txn, changed); why == "" {
		c.wait = wait{}
	} else if !c.wait.over(now) {
		return why
	}
	c.over = in.synced(txn, now)
	return ""
}

// unread returns a table that affects the enforced policies and that its producer has not read yet, "" if there is none.
func (in *inputs) unread(txn statedb.ReadTxn) string {
	for _, name := range []string{in.Pods.Name(), in.Remote.Name(), in.CiliumIdentities.Name(), in.Slices.Name(), in.KubernetesNodes.Name(), in.CiliumNodes.Name()} {
		if row, _, found := in.Sources.Get(txn, sources.ByTable(name)); found && !row.Usable() {
			return fmt.Sprintf("the table %s: %s: %s", name, row.Producer, row.WaitingFor)
		}
	}
	return ""
}

// unmade returns a derived input that is not up to date, "" if all are: a table that is not initialized, a node without a row, the labels, ports or identity
// of a restored endpoint that do not match its pod, or an identity of the cluster that is not in the table identities. It adds channels to changed that close
// when this may have ended, as far as [inputs.read] has not added them: of endpoints, pods, namespaces, identities and the identities of endpoints.
func (in *inputs) unmade(txn statedb.ReadTxn, changed *statedb.WatchSet) string {
	if done, initialized := in.Endpoints.Initialized(txn); !done {
		changed.Add(initialized)
		return "the endpoints of the previous run"
	}
	if done, initialized := in.NodeAddresses.Initialized(txn); !done {
		changed.Add(initialized)
		return "the addresses of the node"
	}
	if name := clusternodes.Unresolved(txn, in.KubernetesNodes, in.CiliumNodes, in.Nodes); name != "" {
		_, more := in.Nodes.AllWatch(txn)
		_, _, kubernetes, _ := in.KubernetesNodes.GetWatch(txn, k8s.NodeByName(name))
		_, _, ofCilium, _ := in.CiliumNodes.GetWatch(txn, cilium.NodeByName(name))
		changed.Add(more, kubernetes, ofCilium) // the node may be deleted before it has a row
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
		return "" // no endpoint is restored, so no policy in use can lack an identity
	}
	for row := range in.CiliumIdentities.All(txn) {
		if _, _, found := in.Identities.Get(txn, identities.ByID(row.ID)); !found {
			_, _, deleted, _ := in.CiliumIdentities.GetWatch(txn, cilium.IdentityByName(row.Key()))
			changed.Add(deleted)
			return fmt.Sprintf("identity %d", row.ID)
		}
	}
	return ""
}
