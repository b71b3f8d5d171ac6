package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/test/nodekit"
)

// quickly sets an endpoint collection interval that is short enough for a test.
var quickly = nodekit.Options{AgentArgs: []string{"--endpoint-gc-interval=1s"}}

// endpointsOf lists the endpoints of a node.
func endpointsOf(t *testing.T, node *nodekit.Node) (list []models.Endpoint, err error) {
	t.Helper()
	text, err := node.Waggle(t.Context(), "endpoint", "list", "-o", "json")
	if err != nil {
		return nil, err
	}
	return list, json.Unmarshal([]byte(text), &list)
}

// exactly waits until the node has endpoints of exactly the given pods.
func exactly(t *testing.T, node *nodekit.Node, pods ...*nodekit.Pod) {
	t.Helper()
	var want []string
	for _, p := range pods {
		want = append(want, p.ContainerID+":"+p.IfName)
	}
	slices.Sort(want)
	eventually(t, func() error {
		list, err := endpointsOf(t, node)
		if err != nil {
			return err
		}
		var have []string
		for _, e := range list {
			have = append(have, e.Status.ExternalIdentifiers.CNIAttachmentID)
		}
		slices.Sort(have)
		if !slices.Equal(have, want) {
			return fmt.Errorf("the node has endpoints %v, want %v", have, want)
		}
		return nil
	})
}

// inQuarantine waits until the endpoint of a pod exists in state invalid, and the reason is shown.
func inQuarantine(t *testing.T, node *nodekit.Node, pod *nodekit.Pod, reason string) {
	t.Helper()
	eventually(t, func() error {
		text, err := node.Waggle(t.Context(), "endpoint", "get", "cni-attachment-id:"+pod.ContainerID+":eth0")
		if err == nil && !(strings.Contains(text, `"invalid"`) && strings.Contains(text, reason)) {
			err = fmt.Errorf("no word of %q in:\n%s", reason, text)
		}
		return err
	})
	eventually(t, func() error {
		status, err := node.Waggle(t.Context(), "status")
		if err != nil || !strings.Contains(status, reason) {
			return fmt.Errorf("waggle status says (%w):\n%s", err, status)
		}
		return nil
	})
}

// held checks that the addresses of a pod are claimed.
func held(t *testing.T, node *nodekit.Node, pod *nodekit.Pod) {
	t.Helper()
	rows, err := node.Waggle(t.Context(), "db", "show", "ipam-addresses")
	for _, ipv6 := range []bool{false, true} {
		if addr := pod.Addr(ipv6).String(); err == nil && !slices.ContainsFunc(strings.Split(rows, "\n"), func(row string) bool {
			return strings.HasPrefix(row, addr+" ") && strings.Contains(row, "claimed")
		}) {
			t.Errorf("%s is not held:\n%s", addr, rows)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// A runtime that removes a sandbox without DEL leaks no address, both while the agent runs and while it does not.
func TestPrivilegedCollect_MissedDEL(t *testing.T) {
	t.Parallel()
	node := startNode(t, quickly)
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	missed := addPod(t, node, "missed")
	if err := missed.Close(); err != nil {
		t.Fatal(err)
	}
	exactly(t, node, a, b)
	missed = addPod(t, node, "missed-again")
	if err := errors.Join(node.KillAgent(t.Context()), missed.Close(), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	exactly(t, node, a, b)
	pingBoth(t, a, b)
	eventually(t, func() error { // the row follows the removal with a short delay
		rows, err := node.Waggle(t.Context(), "db", "show", "collected-endpoints")
		if err != nil || !strings.Contains(rows, "link,namespace") {
			err = fmt.Errorf("collected-endpoints (%w):\n%s", err, rows)
		}
		if log := node.AgentLog(); !strings.Contains(log, "proofs=link,namespace") || !strings.Contains(log, missed.ContainerID) {
			err = errors.Join(err, errors.New("the removal is not in the log"))
		}
		return err
	})
}

// The link of a running pod is deleted: the pod's addresses stay claimed, also over restarts, until the runtime removes the pod.
func TestPrivilegedCollect_LinkDeletedWhilePodRuns(t *testing.T) {
	t.Parallel()
	node := startNode(t, quickly)
	pod, other := addPod(t, node, "a"), addPod(t, node, "b")
	list, err := endpointsOf(t, node)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Status.ExternalIdentifiers.ContainerID != pod.ContainerID {
			continue
		}
		if err := node.Do(func() error {
			return netlink.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: int(e.Status.Networking.InterfaceIndex)}})
		}); err != nil {
			t.Fatal(err)
		}
	}
	inQuarantine(t, node, pod, "is gone")
	for range 2 {
		if err := errors.Join(node.KillAgent(t.Context()), node.StartAgent()); err != nil {
			t.Fatal(err)
		}
		waitReady(t, node)
		inQuarantine(t, node, pod, "is gone")
		held(t, node, pod)
	}
	held(t, node, other)
	if err := pod.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	exactly(t, node, other)
}

// After a reboot, links and namespaces do not exist; the state directory may still exist. Pods start again in new sandboxes under their previous names, while
// the endpoints of the previous sandboxes are being removed.
func TestPrivilegedCollect_Reboot(t *testing.T) {
	t.Parallel()
	node := startNode(t, quickly)
	var old []*nodekit.Pod
	for i := range 5 {
		old = append(old, addPod(t, node, fmt.Sprintf("pod-%d", i)))
	}
	if err := node.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, pod := range old {
		if err := pod.Close(); err != nil {
			t.Fatal(err)
		}
	}
	id := filepath.Join(node.Dir, "boot_id")
	if err := errors.Join(os.WriteFile(id, []byte("another boot\n"), 0o644),
		os.RemoveAll(filepath.Dir(old[0].NetnsPath)), // a new tmpfs
		node.Do(func() error { return unix.Mount(id, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, "") }),
		node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	var fresh []*nodekit.Pod
	for i := range old {
		fresh = append(fresh, addPod(t, node, fmt.Sprintf("pod-%d", i)))
	}
	exactly(t, node, fresh...)
	pingBoth(t, fresh[0], fresh[4])
	if err := node.Do(func() error { return unix.Unmount("/proc/sys/kernel/random/boot_id", 0) }); err != nil {
		t.Error(err)
	}
}

// The sandbox of a pod is created again under the same name while the agent does not run. The previous sandbox is removed, and its late DEL does not touch the
// new one.
func TestPrivilegedCollect_NewSandbox_LateDELOfOldSandbox(t *testing.T) {
	t.Parallel()
	node := startNode(t, quickly)
	old, other := addPod(t, node, "web"), addPod(t, node, "other")
	if err := errors.Join(node.KillAgent(t.Context()), old.Close(), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	fresh := addPod(t, node, "web")
	text, err := node.Waggle(t.Context(), "endpoint", "get", "pod-name:default/web")
	if err != nil || !strings.Contains(text, fresh.ContainerID) {
		t.Errorf("the name finds (%v):\n%s", err, text)
	}
	if err := old.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	exactly(t, node, fresh, other)
	if err := old.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	exactly(t, node, fresh, other)
	pingBoth(t, fresh, other)
}

// When the agent does not see the namespaces, as in a container, a missing link alone is no proof that the pod has ended. A missing link and an API server
// without the pod are proof. A running pod that the API server does not know keeps its endpoint.
func TestPrivilegedCollect_NamespacesNotVisible(t *testing.T) {
	t.Parallel()
	node := newNode(t, quickly)
	var server *kubetest.Server
	if err := node.Do(func() error { server = kubetest.New(t); return nil }); err != nil {
		t.Fatal(err)
	}
	server.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.50.0.0/24", "fd00:50::/64"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodekit.UplinkIPv4.Addr().String()}}}})
	server.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "ns"}})
	for _, name := range []string{"lives", "ends", "unknown"} {
		server.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: "node-1"}})
	}
	node.AddAgentArgs("--manifests-dir=", "--k8s-api-server="+server.URL(), "--ipam=kubernetes")
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	// The plugin and the pods see one folder, and the agent sees another, empty one: the agent uses the mount namespace of the node, so it is started again
	// below with the folder covered.
	lives, ends, unknown := addPod(t, node, "lives"), addPod(t, node, "ends"), addPod(t, node, "unknown")
	folder := filepath.Dir(lives.NetnsPath)
	cover := func() error { return node.Do(func() error { return unix.Mount("none", folder, "tmpfs", 0, "") }) }
	if err := errors.Join(node.KillAgent(t.Context()), ends.Close(), cover(), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	inQuarantine(t, node, ends, "is gone")
	held(t, node, ends)
	server.Remove(kubeapi.Pods, "default", "ends")
	server.Remove(kubeapi.Pods, "default", "unknown")
	exactly(t, node, lives, unknown)
	eventually(t, func() error {
		log, err := node.Waggle(t.Context(), "endpoint", "log", "pod-name:default/unknown")
		if err == nil && !strings.Contains(log, "it works, but pod default/unknown is not known") {
			err = fmt.Errorf("the log of an unknown pod:\n%s", log)
		}
		return err
	})
	pingBoth(t, lives, unknown)
	if err := node.Do(func() error { return unix.Unmount(folder, 0) }); err != nil {
		t.Error(err)
	}
}
