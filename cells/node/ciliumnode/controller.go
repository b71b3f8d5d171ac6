package ciliumnode

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/firewallchains"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/nodeupdates"
	"github.com/waggle-net/waggle/pkg/tables/overlays"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

type params struct {
	cell.In

	DB          *statedb.DB
	Client      *kubeapi.Client
	Table       statedb.RWTable[nodeupdates.Update]
	Nodes       statedb.Table[*k8s.Node]
	CiliumNodes statedb.Table[*cilium.Node]
	Sources     statedb.Table[sources.Source]
	LocalNode   statedb.Table[*localnode.LocalNode]
	Overlays    statedb.Table[*overlays.Overlay]
	Slots       statedb.Table[*nodeslots.Slot]
	Attachments statedb.Table[*attachments.Attachment]
	Firewall    statedb.Table[firewallchains.Chain]
	Endpoints   statedb.Table[*endpoints.Endpoint]
	Config      Config
	Agent       agentconfig.Agent
}

type controller struct {
	params
	machine   machine
	conflict  conflict
	receiving bool // programs of this run receive the tunnel; never reset
}

// pass compares the CiliumNode on the server with the desired one and writes the differences. It runs when either may have
// changed; the row of the CiliumNode is trimmed, so it serves only as a trigger.
func (c *controller) pass(ctx context.Context, watch *statedb.WatchSet) []nodeupdates.Update {
	update := nodeupdates.Update{Name: c.Agent.NodeName, State: nodeupdates.Done}
	want, missing := c.wanted(c.DB.ReadTxn(), watch)
	if missing != "" {
		update.State, update.Message = nodeupdates.Waiting, missing
		return []nodeupdates.Update{update}
	}
	update.Wanted = want.String()
	if err := c.write(ctx, want, &update); err != nil {
		update.State, update.Message = nodeupdates.Failed, err.Error()
	}
	return []nodeupdates.Update{update}
}

func (c *controller) write(ctx context.Context, want wanted, update *nodeupdates.Update) error {
	live := &ciliumv2.CiliumNode{}
	err := c.Client.Get(ctx, kubeapi.CiliumNodes, "", c.Agent.NodeName, live)
	switch {
	case apierrors.IsNotFound(err) && !c.Config.AutoCreate:
		update.State = nodeupdates.Waiting
		update.Message = "another program to create it (--auto-create-cilium-node-resource=false)"
		return nil
	case apierrors.IsNotFound(err):
		return c.recordWrite(c.Client.Create(ctx, kubeapi.CiliumNodes, "", want.object(), nil))
	case err != nil:
		return err
	case c.conflict.observe(c.machine, live, time.Now()):
		return c.conflict.err(c.Agent.NodeName)
	}
	changes := want.changes(live)
	if len(changes) == 0 {
		return c.conflict.err(c.Agent.NodeName)
	}
	// The patch contains the resource version, so that the server rejects it if another writer changed the object meanwhile.
	metadata, _ := changes["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
		changes["metadata"] = metadata
	}
	metadata["resourceVersion"] = live.ResourceVersion
	patch, err := json.Marshal(changes)
	if err != nil {
		return fmt.Errorf("encode the patch of CiliumNode %s: %w", live.Name, err)
	}
	return c.recordWrite(c.Client.Patch(ctx, kubeapi.CiliumNodes, "", live.Name, types.MergePatchType, patch, nil))
}

// recordWrite records the result of a write, and returns its error or the conflict with another agent.
func (c *controller) recordWrite(err error) error {
	if err != nil {
		return err
	}
	c.conflict.hold(time.Now())
	return c.conflict.err(c.Agent.NodeName)
}

// wanted collects the desired content of the CiliumNode, or returns the missing input.
func (c *controller) wanted(txn statedb.ReadTxn, watch *statedb.WatchSet) (wanted, string) {
	node, _, changed, found := c.Nodes.GetWatch(txn, k8s.NodeByName(c.Agent.NodeName))
	source, _, sourceChanged, _ := c.Sources.GetWatch(txn, sources.ByTable(c.Nodes.Name()))
	local, _, localChanged, _ := c.LocalNode.GetWatch(txn, localnode.ByName(c.Agent.NodeName))
	own, _, ownChanged, _ := c.CiliumNodes.GetWatch(txn, cilium.NodeByName(c.Agent.NodeName))
	watch.Add(changed, sourceChanged, localChanged, ownChanged)
	switch {
	case !source.Usable():
		return wanted{}, "the Nodes of the cluster to be read"
	case !found:
		return wanted{}, "the Node " + c.Agent.NodeName + " (if the name is wrong, set --node-name or K8S_NODE_NAME)"
	case node.UID == "":
		return wanted{}, "the UID of the Node " + c.Agent.NodeName
	}
	w := wanted{receives: c.receives(txn, watch, own), node: node, machine: c.machine, writesCIDRs: c.Agent.IPAM == agentconfig.IPAMKubernetes}
	if local != nil && local.Ready {
		w.local = local
	}
	w.pods = c.endpoints(txn, watch, own, w)
	return w, ""
}

// receives returns the annotation for the encapsulations that this node receives. It is "" before programs of this run receive the tunnel: the value of the
// previous run stays until then.
func (c *controller) receives(txn statedb.ReadTxn, watch *statedb.WatchSet, own *cilium.Node) string {
	r := nodes.Receives{Direct: true}
	if c.Agent.Tunnel() {
		r = nodes.Receives{Direct: c.Agent.Hybrid && c.unfiltered(txn, watch, own), Port: c.Agent.TunnelPort, IPv4: c.Agent.EnableIPv4, IPv6: c.Agent.EnableIPv6}
		if c.receiving = c.receiving || c.tunnelled(txn, watch); !c.receiving {
			return ""
		}
	}
	return r.String()
}

// unfiltered reports whether no firewall of this node drops packets of pods that arrive without a tunnel. Until the rules were read, the published value counts.
func (c *controller) unfiltered(txn statedb.ReadTxn, watch *statedb.WatchSet, own *cilium.Node) bool {
	if complete, initialized := c.Firewall.Initialized(txn); !complete {
		watch.Add(initialized)
		return own != nil && nodes.ParseReceives(own.Annotations[ciliumv2.ReceivesAnnotation]).Direct
	}
	_, changed := c.Firewall.AllWatch(txn)
	watch.Add(changed)
	return c.Firewall.NumObjects(txn) == 0
}

// tunnelled reports whether programs of this run receive the tunnel and send into it. It watches only the first missing condition: each wake queries the API
// server.
func (c *controller) tunnelled(txn statedb.ReadTxn, watch *statedb.WatchSet) bool {
	rows, changed := c.Overlays.AllWatch(txn)
	up := false
	for o := range rows {
		up = o.Up && o.Status.Kind == reconciler.StatusKindDone
	}
	if !up {
		watch.Add(changed)
	}
	return up && tried(txn, watch, c.Slots) && tried(txn, watch, c.Attachments)
}

// tried reports whether a table is complete and has no pending row. A failed row does not count as pending, so that it does not keep other pods from the
// tunnel.
func tried[R interface{ GetStatus() reconciler.Status }](txn statedb.ReadTxn, watch *statedb.WatchSet, table statedb.Table[R]) bool {
	if complete, initialized := table.Initialized(txn); !complete {
		watch.Add(initialized)
		return false
	}
	rows, changed := table.AllWatch(txn)
	for row := range rows {
		if row.GetStatus().Kind == reconciler.StatusKindPending {
			watch.Add(changed)
			return false
		}
	}
	return true
}
