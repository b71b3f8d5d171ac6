package k8snode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeupdates"
)

// reason of the conditions that the agent sets, for users and tools.
const reason = "WaggleIsUp"

// condition returns the item for NetworkUnavailable=False. The agent keeps a False condition of another writer.
func (c controller) condition(node *k8s.Node) item {
	return item{
		update:  nodeupdates.Update{Name: "condition", Wanted: "NetworkUnavailable=False", State: nodeupdates.Done},
		differs: node.NetworkUnavailable != string(corev1.ConditionFalse),
		write:   c.writeCondition,
	}
}

func (c controller) writeCondition(ctx context.Context, live *corev1.Node) error {
	for _, condition := range live.Status.Conditions {
		if condition.Type == corev1.NodeNetworkUnavailable && condition.Status == corev1.ConditionFalse {
			return nil
		}
	}
	now := metav1.NewTime(time.Now())
	return c.patchCondition(ctx, live, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: reason,
		Message: "Waggle is running on this node", LastHeartbeatTime: now, LastTransitionTime: now})
}

// taint returns the item for the removal of taints with the configured key. The agent does not change other taints.
func (c controller) taint(node *k8s.Node) item {
	it := item{
		update: nodeupdates.Update{Name: "taint", Wanted: "no " + c.Settings.taintKey, State: nodeupdates.Done},
		write:  c.removeTaints,
	}
	for _, key := range node.TaintKeys {
		it.differs = it.differs || key == c.Settings.taintKey
	}
	return it
}

// operation is a step of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// removeTaints removes taints by index, the last one first. The JSON patch tests the key at each index, so that the request fails instead of removing another
// taint if the list has changed.
func (c controller) removeTaints(ctx context.Context, live *corev1.Node) error {
	var steps []operation
	for i := len(live.Spec.Taints) - 1; i >= 0; i-- {
		if live.Spec.Taints[i].Key == c.Settings.taintKey {
			place := "/spec/taints/" + strconv.Itoa(i)
			steps = append(steps, operation{"test", place + "/key", c.Settings.taintKey}, operation{Op: "remove", Path: place})
		}
	}
	if len(steps) == 0 {
		return nil
	}
	patch, err := json.Marshal(steps)
	if err != nil {
		return fmt.Errorf("encode the patch of taints: %w", err)
	}
	return c.patch(ctx, types.JSONPatchType, patch, live)
}

// patch changes the Node and stores the server's result in live.
func (c controller) patch(ctx context.Context, kind types.PatchType, data []byte, live *corev1.Node, subresources ...string) error {
	changed := &corev1.Node{}
	if err := c.Client.Patch(ctx, kubeapi.Nodes, "", c.Agent.NodeName, kind, data, changed, subresources...); err != nil {
		return err
	}
	if changed.UID != live.UID {
		return errors.New("the Node was recreated meanwhile")
	}
	*live = *changed
	return nil
}
