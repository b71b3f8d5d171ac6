package node_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/test/nodekit"
)

func TestPrivilegedAdd_ConflictOrMissingNamespace_Fails(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	first := addPod(t, node, "first")
	before := settled(t, node)

	t.Run("the attachment exists", func(t *testing.T) {
		again := *first
		requireCNIError(t, again.Attach(t.Context()), 0, "")
	})
	t.Run("the interface exists in the pod", func(t *testing.T) {
		pod, err := node.NewPod("occupied")
		if err != nil {
			t.Fatal(err)
		}
		defer pod.Close()
		if err := pod.Do(func() error {
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"})
		}); err != nil {
			t.Fatal(err)
		}
		requireCNIError(t, pod.Attach(t.Context()), 0, "eth0")
	})
	t.Run("the namespace does not exist", func(t *testing.T) {
		pod, err := node.NewPod("nowhere")
		if err != nil {
			t.Fatal(err)
		}
		if err := pod.Close(); err != nil {
			t.Fatal(err)
		}
		requireCNIError(t, pod.Attach(t.Context()), 0, pod.NetnsPath)
	})
	eventuallySame(t, node, before)
	if err := nodekit.Ping(first, first.Gateway(false), 56); err != nil {
		t.Errorf("the first attachment was hurt: %v", err)
	}
	if err := first.Check(t.Context()); err != nil {
		t.Errorf("the first attachment was hurt: %v", err)
	}
}

func TestPrivilegedAdd_ExhaustedPool_ErrorNamesOwners(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{IPv4CIDR: "10.244.1.0/29", IPv6CIDR: "-", AgentArgs: []string{"--enable-ipv6=false"}})
	for _, name := range []string{"a", "b", "c", "d", "e"} { // 8 less network, broadcast and router
		addPod(t, node, name)
	}
	pod, err := node.NewPod("one-too-many")
	if err != nil {
		t.Fatal(err)
	}
	defer pod.Close()
	err = pod.Attach(t.Context())
	requireCNIError(t, err, 0, "range is full")
	for _, word := range []string{"used", "quarantined", "excluded"} {
		if err != nil && !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
	if err := status(t, node); err != nil {
		t.Errorf("STATUS of a node with a full range, which makes the node NotReady: %v", err)
	}
}

func TestPrivilegedAgentDown_AddFailsAndDelIsQueued(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	pod := addPod(t, node, "a")
	if err := node.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}

	late, err := node.NewPod("late")
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	requireCNIError(t, late.Attach(ctx), types.ErrTryAgainLater, filepath.Join(node.StateDir(), "waggle.sock"))

	if err := pod.Detach(t.Context()); err != nil {
		t.Fatalf("DEL with no agent: %v", err)
	}
	if links, err := node.PodLinks(); err != nil || len(links) != 0 {
		t.Errorf("links after DEL: %v, %v", links, err)
	}
	if queue, err := filepath.Glob(filepath.Join(node.StateDir(), "deleteQueue", "*.delete")); err != nil || len(queue) != 1 {
		t.Errorf("the deletion queue holds %v, %v; want one entry", queue, err)
	}

	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	eventually(t, func() error {
		list, err := node.Waggle(t.Context(), "endpoint", "list")
		if err == nil && strings.Contains(list, "default/a") {
			err = errors.New("the queued DEL was not replayed:\n" + list)
		}
		return err
	})
}

func TestPrivilegedAPI_BadBodiesAllocateNothing(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	before := settled(t, node)
	for name, request := range map[string]string{
		"truncated JSON": "PUT /v1/endpoint/cilium-local:0 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{\"labels\"",
		"wrong type":     "PUT /v1/endpoint/cilium-local:0 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"labels\": 17}",
		"oversized":      "PUT /v1/endpoint/cilium-local:0 HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 20000000\r\n\r\n{\"container-id\": \"" + strings.Repeat("a", 4<<20),
		"bad address":    "POST /v1/ipam/not-an-address?pool=default HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
		"bad family":     "POST /v1/ipam?family=ipv5 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			answer := rawRequest(t, node, request)
			if !strings.HasPrefix(answer, "HTTP/1.1 4") && !strings.HasPrefix(answer, "HTTP/1.1 5") {
				t.Errorf("the answer is %.200q", answer)
			}
		})
	}
	eventuallySame(t, node, before)
}

func TestPrivilegedStateFile_CorruptFilesAreQuarantined(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	if err := node.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(node.StateDir(), "endpoints")
	for name, text := range map[string]string{"4000.json": "{half", "foreign.json": `{"hello":"world"}`, "note.txt": "not ours"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	pingBoth(t, a, b)
	if _, err := os.Stat(filepath.Join(dir, "4000.json")); !os.IsNotExist(err) {
		t.Errorf("the half-written file is still in place (%v)", err)
	}
	if !strings.Contains(node.AgentLog(), "4000.json") {
		t.Error("the log does not name the half-written file")
	}
}

// requireCNIError requires a CNI error with a code (0: any code except 0) and a word in its text.
func requireCNIError(t *testing.T, err error, code uint, word string) {
	t.Helper()
	if err == nil {
		t.Error("the call succeeded")
		return
	}
	var cni *types.Error
	if !errors.As(err, &cni) {
		t.Errorf("not a CNI error: %v", err)
		return
	}
	if code != 0 && cni.Code != code {
		t.Errorf("code %d, want %d: %v", cni.Code, code, err)
	}
	if !strings.Contains(cni.Error(), word) {
		t.Errorf("the error does not say %q: %v", word, err)
	}
}

func status(t *testing.T, node *nodekit.Node) error {
	t.Helper()
	return node.Do(func() error {
		cni, conf, err := node.CNI("1.1.0")
		if err != nil {
			return err
		}
		return cni.GetStatusNetworkList(context.Background(), conf)
	})
}

func rawRequest(t *testing.T, node *nodekit.Node, request string) string {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(node.StateDir(), "waggle.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(awaitFor))
	go func() { _, _ = conn.Write([]byte(request)); _ = conn.(*net.UnixConn).CloseWrite() }()
	buffer := make([]byte, 4096)
	n, err := conn.Read(buffer)
	if err != nil {
		t.Fatalf("read the answer: %v", err)
	}
	return string(buffer[:n])
}
