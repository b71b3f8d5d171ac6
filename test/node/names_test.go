package node_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/waggle-net/waggle/test/nodekit"
)

// Any names of a runtime are rejected with a CNI error or do no harm, and no state remains.
func TestPrivilegedNames_HostileNames_RejectedOrHarmless(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	bystander := addPod(t, node, "bystander")
	before := settled(t, node)
	long := strings.Repeat("a", 10<<10)
	for name, change := range map[string]func(env map[string]string){
		"container id of 10 kB":         func(e map[string]string) { e["CNI_CONTAINERID"] = long },
		"container id with separators":  func(e map[string]string) { e["CNI_CONTAINERID"] = "a:eth0" },
		"container id with a path":      func(e map[string]string) { e["CNI_CONTAINERID"] = "../../etc/passwd" },
		"container id with an escape":   func(e map[string]string) { e["CNI_CONTAINERID"] = "a\x1b[2Jb" },
		"container id with a newline":   func(e map[string]string) { e["CNI_CONTAINERID"] = "a\nb" },
		"interface of 10 kB":            func(e map[string]string) { e["CNI_IFNAME"] = long },
		"interface with a path":         func(e map[string]string) { e["CNI_IFNAME"] = "../eth0" },
		"interface with an escape":      func(e map[string]string) { e["CNI_IFNAME"] = "a\x1b[2Jb" },
		"interface with a separator":    func(e map[string]string) { e["CNI_IFNAME"] = "eth0:1" },
		"interface with a space":        func(e map[string]string) { e["CNI_IFNAME"] = "eth 0" },
		"interface with a percent sign": func(e map[string]string) { e["CNI_IFNAME"] = "eth%d" },
		"interface lo":                  func(e map[string]string) { e["CNI_IFNAME"] = "lo" },
		"pod of 10 kB":                  func(e map[string]string) { e["CNI_ARGS"] = "K8S_POD_NAMESPACE=x;K8S_POD_NAME=" + long },
		"pod with a separator":          func(e map[string]string) { e["CNI_ARGS"] = "K8S_POD_NAMESPACE=x/y;K8S_POD_NAME=z" },
		"pod with an escape":            func(e map[string]string) { e["CNI_ARGS"] = "K8S_POD_NAMESPACE=x;K8S_POD_NAME=\x1b[31mz" },
		"arguments without a value":     func(e map[string]string) { e["CNI_ARGS"] = "K8S_POD_NAME" },
		"an unknown argument":           func(e map[string]string) { e["CNI_ARGS"] = "COLOUR=blue" },
		"namespace that is a file":      func(e map[string]string) { e["CNI_NETNS"] = "/etc/passwd" },
		"namespace of 10 kB":            func(e map[string]string) { e["CNI_NETNS"] = "/" + long },
		"namespace of the node":         func(e map[string]string) { e["CNI_NETNS"] = "/proc/self/ns/net" },
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(t, node, "hostile")
			env := environment(pod)
			change(env)
			failed, out := plugin(t, node, "ADD", env)
			if failed == nil {
				t.Errorf("ADD succeeded: %s", out)
			} else if failed.Code == 0 || failed.Msg == "" {
				t.Errorf("the error is %+v", failed)
			}
			if strings.ContainsRune(string(out), '\x1b') {
				t.Errorf("the error carries an escape: %q", out)
			}
			_, _ = plugin(t, node, "DEL", env) // may be rejected as well, with an error that plugin decodes
		})
	}
	eventuallySame(t, node, before)
	if err := errors.Join(bystander.Check(t.Context()), nodekit.Ping(bystander, bystander.Gateway(false), 56)); err != nil {
		t.Error(err)
	}
}

func environment(pod *nodekit.Pod) map[string]string {
	return map[string]string{"CNI_CONTAINERID": pod.ContainerID, "CNI_NETNS": pod.NetnsPath, "CNI_IFNAME": pod.IfName,
		"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod.Name, "CNI_PATH": binDir}
}

// plugin runs the plugin as a runtime that checks nothing.
func plugin(t *testing.T, node *nodekit.Node, command string, env map[string]string) (failed *types.Error, out []byte) {
	t.Helper()
	cmd := exec.Command(filepath.Join(binDir, "waggle-cni"))
	cmd.Env = append(cmd.Env, "CNI_COMMAND="+command)
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"waggle","type":"waggle-cni","socket-path":%q,"state-dir":%q}`,
		filepath.Join(node.StateDir(), "waggle.sock"), node.StateDir()))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := node.Do(cmd.Run)
	if err == nil {
		return nil, stdout.Bytes()
	}
	failed = &types.Error{}
	if json.Unmarshal(stdout.Bytes(), failed) != nil {
		t.Errorf("%s: %v: printed %q and %q, which is no CNI error", command, err, &stdout, &stderr)
	}
	return failed, append(stdout.Bytes(), stderr.Bytes()...)
}

// An address of one endpoint cannot be claimed for another endpoint.
func TestPrivilegedAddress_InUse_ClaimIsRejected(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	owner, other := addPod(t, node, "owner"), addPod(t, node, "other")
	before := settled(t, node)
	for _, addr := range []netip.Addr{owner.Addr(false), owner.Addr(true), owner.Gateway(false)} {
		key := "ipv4"
		if addr.Is6() {
			key = "ipv6"
		}
		body := fmt.Sprintf(`{"container-id":"thief","container-interface-name":"eth0","interface-name":"lxc000000000000",`+
			`"interface-index":99,"mac":"02:00:00:00:00:01","host-mac":"02:00:00:00:00:02","addressing":{%q:%q}}`, key, addr)
		answer := rawRequest(t, node, fmt.Sprintf("PUT /v1/endpoint/cilium-local:0 HTTP/1.1\r\nHost: localhost\r\n"+
			"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
		if !strings.HasPrefix(answer, "HTTP/1.1 4") || !strings.Contains(answer, addr.String()) {
			t.Errorf("claim of %s: %.300q", addr, answer)
		}
		answer = rawRequest(t, node, fmt.Sprintf("POST /v1/ipam/%s?owner=thief HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", addr))
		if strings.HasPrefix(answer, "HTTP/1.1 2") {
			t.Errorf("allocation of %s: %.300q", addr, answer)
		}
	}
	eventuallySame(t, node, before)
	pingBoth(t, owner, other)
}
