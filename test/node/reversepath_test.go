package node_test

import (
	"os"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

// A node whose new links have a strict reverse path filter, as some distributions set it: the route back to a pod uses another device, so the filter would drop
// the pod's first packet to the node.
func TestPrivilegedReversePath_StrictDefaultDoesNotStopPods(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	if err := node.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/conf/default/rp_filter", []byte("1"), 0)
	}); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		pod := addPod(t, node, "a")
		if err := nodekit.Ping(pod, pod.Gateway(false), 56); err != nil {
			t.Error(err)
		}
	}
}
