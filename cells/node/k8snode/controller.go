package k8snode

import (
	"context"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	corev1 "k8s.io/api/core/v1"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/readiness"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodeupdates"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/tables/selftests"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second
)

type controller struct {
	cell.In

	DB        *statedb.DB
	Client    *kubeapi.Client
	Table     statedb.RWTable[nodeupdates.Update]
	Nodes     statedb.Table[*k8s.Node]
	Sources   statedb.Table[sources.Source]
	LocalNode statedb.Table[*localnode.LocalNode]
	SelfTests statedb.Table[selftests.SelfTest]
	PathTests statedb.Table[*pathtests.Test]
	Paths     *pathsState
	Ready     readiness.Tables
	Settings  settings
	Agent     agentconfig.Agent
}

// item is one desired change of the Node.
type item struct {
	update nodeupdates.Update
	// differs is false when the row of the Node already has the desired state.
	differs bool
	// write compares the desired state with the Node from the server, which may be newer than the row, and updates live after a change.
	write func(ctx context.Context, live *corev1.Node) error
}

// pass compares the row of the Node with the desired state and writes the differences.
func (c controller) pass(ctx context.Context, watch *statedb.WatchSet) []nodeupdates.Update {
	txn := c.DB.ReadTxn()
	items := c.items(txn, watch)
	var live *corev1.Node
	updates := make([]nodeupdates.Update, len(items))
	for i, it := range items {
		updates[i] = it.update
		if !it.differs || it.update.State == nodeupdates.Waiting {
			continue
		}
		if live == nil {
			live = &corev1.Node{}
			if err := c.Client.Get(ctx, kubeapi.Nodes, "", c.Agent.NodeName, live); err != nil {
				live = nil
				updates[i].State, updates[i].Message = nodeupdates.Failed, err.Error()
				continue
			}
		}
		if err := it.write(ctx, live); err != nil {
			live = nil // the Node may have changed
			updates[i].State, updates[i].Message = nodeupdates.Failed, err.Error()
		}
	}
	return updates
}

// items returns all desired changes. Items that must not be written yet are Waiting.
func (c controller) items(txn statedb.ReadTxn, watch *statedb.WatchSet) []item {
	node, _, changed, _ := c.Nodes.GetWatch(txn, k8s.NodeByName(c.Agent.NodeName))
	source, _, sourceChanged, _ := c.Sources.GetWatch(txn, sources.ByTable(c.Nodes.Name()))
	watch.Add(changed, sourceChanged)
	missing := ""
	switch {
	case !source.Usable():
		missing = "the Nodes of the cluster to be read"
	case node == nil:
		missing = "the Node " + c.Agent.NodeName + " (if the name is wrong, set --node-name or K8S_NODE_NAME)"
	}
	if node == nil {
		node = &k8s.Node{}
	}
	items := []item{c.condition(node), c.taint(node)}
	closed := ""
	if missing == "" && (items[0].differs || items[1].differs) {
		closed = c.gate(txn, watch)
	}
	for i := range items {
		if items[i].differs {
			items[i].wait(closed)
		}
	}
	if c.Settings.annotate {
		items = append(items, c.annotations(txn, watch, node))
	}
	if it, wanted := c.paths(txn, watch, node); wanted {
		items = append(items, it)
	}
	for i := range items {
		items[i].wait(missing)
	}
	return items
}

// wait sets the item to Waiting if the reason is not empty.
func (i *item) wait(why string) {
	if why != "" {
		i.update.State, i.update.Message = nodeupdates.Waiting, why
	}
}

// gate returns the unmet requirement for reporting the network of this node as available; empty without one.
func (c controller) gate(txn statedb.ReadTxn, watch *statedb.WatchSet) string {
	test, _, changed, found := c.SelfTests.GetWatch(txn, selftests.ByName(selftests.Attach))
	watch.Add(changed)
	if !found || test.State != selftests.Passed {
		why := "the self-test " + selftests.Attach + " to pass"
		if test.Message != "" {
			why += ": " + test.Message
		}
		return why
	}
	verdict := readiness.Evaluate(txn, c.Ready)
	if verdict.Ready() {
		return ""
	}
	watch.Merge(c.Ready.Watch(txn))
	return strings.Join(verdict.Waiting(), "; ")
}
