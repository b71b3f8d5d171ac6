package k8snode

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/lastapplied"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodeupdates"
)

// prefix of the keys of all annotations that the agent writes.
const prefix = "network.cilium.io/"

const longest = 64 // maximum length in bytes of a foreign annotation value in a row

// annotations returns the item for the annotations that describe the network of this node.
func (c controller) annotations(txn statedb.ReadTxn, watch *statedb.WatchSet, node *k8s.Node) item {
	local, _, changed, found := c.LocalNode.GetWatch(txn, localnode.ByName(c.Agent.NodeName))
	watch.Add(changed)
	it := item{update: nodeupdates.Update{Name: "annotations", State: nodeupdates.Done}}
	if !found || !local.Ready {
		it.wait("the pod CIDR and the router address of this node")
		return it
	}
	want := wantedAnnotations(local)
	it.update.Wanted = show(want)
	changes, foreign := plan(node.Annotations, want)
	if len(foreign) > 0 {
		it.update.Message = "not overwritten because the value is foreign: " + strings.Join(foreign, ", ")
	}
	it.differs = len(changes) > 0
	it.write = func(ctx context.Context, live *corev1.Node) error { return c.annotate(ctx, live, want) }
	return it
}

// wantedAnnotations returns a value for every key that the agent ever writes. The value is empty when this node lacks the address or range.
func wantedAnnotations(local *localnode.LocalNode) map[string]string {
	want := map[string]string{}
	for family, f := range map[string]localnode.Family{"ipv4": local.IPv4, "ipv6": local.IPv6} {
		cidr := ""
		if f.AllocRange.IsValid() {
			cidr = f.AllocRange.String()
		}
		want[prefix+family+"-pod-cidr"] = cidr
		want[prefix+family+"-cilium-host"] = text(f.Router)
		want[prefix+family+"-health-ip"] = text(f.Health)
	}
	return want
}

func text(addr netip.Addr) string {
	if !addr.IsValid() {
		return ""
	}
	return addr.String()
}

// plan compares the annotations of a Node with the desired ones. It returns the changes, where nil removes a key and the last-applied record is included, and
// the keys whose values another writer set and the agent keeps. A pod CIDR of another writer is the source of the CIDR, now or after the next start:
// overwriting it would lose the CIDR.
func plan(have, want map[string]string) (changes map[string]*string, foreign []string) {
	changes = map[string]*string{}
	record := lastapplied.Values{}
	written := lastapplied.Of(have)
	for key, value := range want {
		old, found := have[key]
		ours := found && written.Ours(key, old)
		switch {
		case value == "" && ours:
			changes[key] = nil
		case value == "" || found && old == value && !ours:
		case found && !ours && strings.HasSuffix(key, "-pod-cidr"):
			foreign = append(foreign, key+"="+printable.Short(old, longest))
		default:
			record[key] = value
			if old != value {
				changes[key] = &value
			}
		}
	}
	if text, old := record.String(), have[lastapplied.Annotation]; text != old {
		changes[lastapplied.Annotation] = &text
		if text == "" {
			changes[lastapplied.Annotation] = nil
		}
	}
	slices.Sort(foreign)
	return changes, foreign
}

// annotate writes the annotations that differ. The patch contains the resource version of the Node, so that the server rejects it if the annotations have
// changed.
func (c controller) annotate(ctx context.Context, live *corev1.Node, want map[string]string) error {
	changes, _ := plan(live.Annotations, want)
	if len(changes) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": live.ResourceVersion, "annotations": changes}})
	if err != nil {
		return fmt.Errorf("encode the patch of annotations: %w", err)
	}
	return c.patch(ctx, types.MergePatchType, patch, live, "status")
}

func show(want map[string]string) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if want[key] != "" {
			parts = append(parts, strings.TrimPrefix(key, prefix)+"="+want[key])
		}
	}
	return strings.Join(parts, " ")
}
