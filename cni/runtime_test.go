package cni

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/statefile"
)

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s) }

// storeEndpoint writes a state file as the agent does.
func storeEndpoint(t *testing.T, stateDir, name, containerID string) {
	t.Helper()
	store := statefile.New(filepath.Join(stateDir, "endpoints"), "endpoint")
	if err := store.Open(); err != nil {
		t.Fatal(err)
	}
	if err := store.Write(name, map[string]any{"containerID": containerID, "ifName": "eth0"}); err != nil {
		t.Fatal(err)
	}
}

// A runtime performs the lifecycle of a pod in every version of the specification.
func TestPrivilegedRuntime_EveryVersion(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			n, p := newNode(t), newPod(t)
			list, err := libcni.ConfListFromBytes(fmt.Appendf(nil,
				`{"cniVersion":%q,"name":"waggle","plugins":[{"type":"waggle-cni","state-dir":%q}]}`, version, n.dir))
			if err != nil {
				t.Fatal(err)
			}
			cni := libcni.NewCNIConfigWithCacheDir([]string{binDir(t)}, t.TempDir(), nil)
			rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: p.path, IfName: "eth0", Args: [][2]string{
				{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "web"}, {"K8S_POD_INFRA_CONTAINER_ID", "c1"}}}
			n.net.Do(func() { live(t, cni, list, rt, version) })
			if _, endpoints := n.agent.left(); len(endpoints) > 0 {
				t.Errorf("endpoints %v are left", endpoints)
			}
		})
	}
}

func live(t *testing.T, cni *libcni.CNIConfig, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf, version string) {
	ctx := context.Background()
	result, err := cni.AddNetworkList(ctx, list, rt)
	if err != nil {
		t.Errorf("ADD: %v", err)
		return
	}
	if result.Version() != version {
		t.Errorf("ADD answered in version %s", result.Version())
	}
	if r, err := types100.NewResultFromResult(result); err != nil || len(r.IPs) != 2 {
		t.Errorf("ADD answered %v, %v", r, err)
	}
	if version != "0.3.1" {
		if err := cni.CheckNetworkList(ctx, list, rt); err != nil {
			t.Errorf("CHECK: %v", err)
		}
	}
	if version == "1.1.0" {
		if err := cni.GetStatusNetworkList(ctx, list); err != nil {
			t.Errorf("STATUS: %v", err)
		}
		valid := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}}}
		if err := cni.GCNetworkList(ctx, list, valid); err != nil {
			t.Errorf("GC: %v", err)
		}
		if err := cni.CheckNetworkList(ctx, list, rt); err != nil {
			t.Errorf("CHECK after a GC that lists the attachment: %v", err)
		}
	}
	if err := cni.DelNetworkList(ctx, list, rt); err != nil {
		t.Errorf("DEL: %v", err)
	}
}

func TestPrivilegedVersion(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	out := string(n.must(call{command: "VERSION"}))
	for _, v := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		if !strings.Contains(out, `"`+v+`"`) {
			t.Errorf("VERSION answered %s without %s", out, v)
		}
	}
}

func TestPrivilegedConcurrent(t *testing.T) {
	t.Parallel()
	const count = 20
	n := newNode(t)
	binDir(t)
	pods := make([]pod, count)
	for i := range pods {
		pods[i] = newPod(t)
	}
	all := func(request func(string, pod) call) {
		var wg sync.WaitGroup
		for i, p := range pods {
			wg.Go(func() {
				if _, failed := n.run(request(fmt.Sprintf("c%d", i), p)); failed != nil {
					t.Errorf("pod %d: code %d: %s", i, failed.Code, failed.Msg)
				}
			})
		}
		wg.Wait()
	}
	all(add)
	if addresses, endpoints := n.agent.left(); len(addresses) != 2*count || len(endpoints) != count {
		t.Errorf("%d addresses, %d endpoints", len(addresses), len(endpoints))
	}
	all(del)
	if addresses, endpoints := n.agent.left(); len(addresses)+len(endpoints) > 0 {
		t.Errorf("left: addresses %v, endpoints %v", addresses, endpoints)
	}
	for _, link := range n.links() {
		if !strings.HasSuffix(link, fmt.Sprintf("%#x", podlink.DeletedGroup)) {
			t.Errorf("link %s is left", link)
		}
	}
}

// interrupt sends a signal to an ADD while the agent processes its PUT, and returns when the plugin has ended.
func interrupt(t *testing.T, n *node, p pod, signal syscall.Signal) {
	t.Helper()
	reached, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	n.agent.set(func() {
		n.agent.before = func(method, _ string) {
			if method == "PUT" {
				once.Do(func() { close(reached) })
				<-release
			}
		}
	})
	binDir(t)
	n.net.Do(func() {
		cmd := n.command(add("c1", p))
		if err := cmd.Start(); err != nil {
			t.Error(err)
			return
		}
		select {
		case <-reached:
		case <-time.After(15 * time.Second):
			t.Error("the plugin sent no PUT")
		}
		_ = cmd.Process.Signal(signal)
		done := make(chan struct{})
		go func() { _ = cmd.Wait(); close(done) }()
		if signal == syscall.SIGKILL {
			<-done
			return
		}
		time.Sleep(100 * time.Millisecond)
		close(release) // a slow agent must not prevent the plugin from undoing its changes
		<-done
	})
	if signal == syscall.SIGKILL {
		n.agent.set(func() { n.agent.before = nil })
		close(release)
	}
}

func TestPrivilegedAdd_TerminatedIsUndone(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	interrupt(t, n, p, syscall.SIGTERM)
	n.agent.stop() // waits for running requests
	n.agent.start(t)
	n.must(del("c1", p))
	n.wantNothing()
}

// A killed ADD leaves only resources that its DEL and the agent's expiry remove.
func TestPrivilegedAdd_Killed_DelRemovesRemains(t *testing.T) {
	t.Parallel()
	n, p := newNode(t), newPod(t)
	interrupt(t, n, p, syscall.SIGKILL)
	if got := strings.Join(n.links(), ";"); got != groupOf("c1", 0, podlink.Group) {
		t.Errorf("links: %s", got)
	}
	n.must(del("c1", p))
	if got := strings.Join(n.links(), ";"); got != groupOf("c1", 0, podlink.DeletedGroup) {
		t.Errorf("links after DEL: %s", got)
	}
	n.must(add("c1", p))
}

// The design limits the size of the stripped program.
func TestSize(t *testing.T) {
	t.Parallel()
	info, err := os.Stat(filepath.Join(binDir(t), "waggle-cni"))
	if err != nil {
		t.Fatal(err)
	}
	const budget = 8_000_000
	if info.Size() > budget {
		t.Errorf("the stripped program has %d bytes, more than %d", info.Size(), budget)
	}
	t.Logf("%d bytes", info.Size())
}
