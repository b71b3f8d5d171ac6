package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/test/nodekit"
)

// A plugin that is killed at any point of ADD leaves no state after the runtime has sent DEL and unclaimed allocations have expired.
func TestPrivilegedAdd_KilledAtAnyPointLeavesNothing(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	before := settled(t, node)
	for _, c := range []struct{ name, request, answer string }{
		{name: "before the request for addresses", request: "POST /v1/ipam"},
		{name: "after the addresses", answer: "POST /v1/ipam"},
		{name: "after the link, before PUT", request: "PUT /v1/endpoint"},
		{name: "during PUT", answer: "PUT /v1/endpoint"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := newPod(t, node, "killed")
			killAdd(t, node, pod, c.request, c.answer)
			if err := pod.Detach(t.Context()); err != nil {
				t.Fatalf("DEL: %v", err)
			}
			if err := pod.Do(func() error {
				if _, err := netlink.LinkByName("eth0"); err == nil {
					return errors.New("eth0 is left in the pod")
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
			eventuallySame(t, node, before)
			if err := pod.Attach(t.Context()); err != nil {
				t.Fatalf("ADD again: %v", err)
			}
			if err := errors.Join(nodekit.Ping(pod, pod.Gateway(false), 56), nodekit.Ping(pod, pod.Gateway(true), 56), pod.Detach(t.Context())); err != nil {
				t.Error(err)
			}
			eventuallySame(t, node, before)
		})
	}
	requireNothingClaimed(t, node)
}

// killAdd runs an ADD and kills it when it has sent a request. The argument request names a request that never arrives, and answer a request whose response
// never arrives.
func killAdd(t *testing.T, node *nodekit.Node, pod *nodekit.Pod, request, answer string) {
	t.Helper()
	proxy := newProxy(t, node, request, answer)
	env, stdin := pluginCall(node, pod, "ADD", proxy.socket)
	cmd := exec.Command(filepath.Join(binDir, "waggle-cni"))
	cmd.Env, cmd.Stdin = env, strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := node.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	select {
	case <-proxy.reached:
	case <-time.After(awaitFor):
		t.Errorf("the plugin never came that far: %s", &out)
	}
	_ = cmd.Process.Kill()
	if err := cmd.Wait(); err == nil {
		t.Error("the ADD succeeded")
	}
	close(proxy.killed)
}

// pluginCall returns the environment and the input of one run of the plugin as a runtime calls it, without libcni.
func pluginCall(node *nodekit.Node, pod *nodekit.Pod, command, socket string) (env []string, stdin string) {
	rt := pod.Runtime()
	var args []string
	for _, pair := range rt.Args {
		args = append(args, pair[0]+"="+pair[1])
	}
	env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + rt.ContainerID, "CNI_NETNS=" + rt.NetNS, "CNI_IFNAME=" + rt.IfName,
		"CNI_ARGS=" + strings.Join(args, ";"), "CNI_PATH=" + binDir}
	return env, fmt.Sprintf(`{"cniVersion":"1.1.0","name":"waggle","type":"waggle-cni","socket-path":%q,"state-dir":%q}`,
		socket, node.StateDir())
}

// proxy forwards requests between the plugin and the agent, and holds back one request or its response.
type proxy struct {
	socket          string
	request, answer string
	reached, killed chan struct{}
	once            sync.Once
}

func newProxy(t *testing.T, node *nodekit.Node, request, answer string) *proxy {
	t.Helper()
	dir, err := os.MkdirTemp(node.Dir, "proxy-")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{socket: filepath.Join(dir, "s"), request: request, answer: answer,
		reached: make(chan struct{}), killed: make(chan struct{})}
	listener, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(client, filepath.Join(node.StateDir(), "waggle.sock"))
		}
	}()
	return p
}

func (p *proxy) serve(client net.Conn, socket string) {
	defer client.Close()
	agent, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer agent.Close()
	ctx, cancel := context.WithCancel(context.Background())
	var silent atomic.Bool // the agent's response must not pass
	go func() { defer cancel(); p.requests(agent, client, &silent) }()
	p.forwardReplies(client, agent, &silent)
	<-ctx.Done()
}

// requests forwards requests of the plugin until the one at which the plugin is killed. Each request is small enough for one read. If the response is held
// back, the agent is working when the plugin dies.
func (p *proxy) requests(agent, plugin net.Conn, silent *atomic.Bool) {
	defer func() { _ = agent.(*net.UnixConn).CloseWrite() }()
	for buffer := make([]byte, 1<<16); ; {
		n, err := plugin.Read(buffer)
		if err != nil {
			return
		}
		if p.request != "" && bytes.HasPrefix(buffer[:n], []byte(p.request)) {
			p.stop()
			return
		}
		last := p.answer != "" && bytes.HasPrefix(buffer[:n], []byte(p.answer))
		silent.Store(last)
		if _, err := agent.Write(buffer[:n]); err != nil {
			return
		}
		if last {
			p.stop()
		}
	}
}

func (p *proxy) forwardReplies(plugin, agent net.Conn, silent *atomic.Bool) {
	defer func() { _ = plugin.(*net.UnixConn).CloseWrite() }()
	for buffer := make([]byte, 1<<16); ; {
		n, err := agent.Read(buffer)
		if err != nil {
			return
		}
		if silent.Load() {
			<-p.killed
			return
		}
		if _, err := plugin.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (p *proxy) stop() {
	p.once.Do(func() { close(p.reached) })
	<-p.killed
}

// requireNothingClaimed requires that every address of a pod is in quarantine or about to expire.
func requireNothingClaimed(t *testing.T, node *nodekit.Node) {
	t.Helper()
	text, err := node.Waggle(t.Context(), "ipam", "list")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "default/") && strings.HasSuffix(strings.TrimSpace(line), "-") {
			t.Errorf("an address of a pod neither expires nor is in quarantine: %s", line)
		}
	}
}
