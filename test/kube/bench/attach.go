package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/kube"
)

// times holds the durations of calls of the same kind.
type times []time.Duration

// quantile returns 0 when there are no times.
func (t times) quantile(percent int) time.Duration {
	if len(t) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(t))
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}

// value returns a quantile in milliseconds, and NaN when there are no times.
func (t times) value(percent int) float64 {
	if len(t) == 0 {
		return math.NaN()
	}
	return inMilliseconds(t.quantile(percent))
}

func (t times) text(percent int) string {
	if len(t) == 0 {
		return "none"
	}
	return show(t.quantile(percent))
}

func (t times) both(percent, second int) string {
	return fmt.Sprintf("%s (%s)", t.text(percent), t.text(second))
}

// attachments holds the durations of ADD, and of plugin runs that only print the supported versions. On a busy machine, the increase of the latter is not
// caused by the agent.
type attachments struct{ adds, starts times }

// attached attaches pods sequentially, as a container runtime does, detaches each of them and returns the durations of ADD. Kubelet would also attach the
// pods and is stopped meanwhile. If with is not nil, attached calls it before kubelet starts again.
func (m *measurement) attached(ctx context.Context, count int, with func() error) (took attachments, err error) {
	if err := m.node.StopKubelet(); err != nil {
		return took, err
	}
	defer func() { err = errors.Join(err, m.node.StartKubelet()) }()
	for i := range count {
		pod, err := m.newPod(ctx, fmt.Sprintf("add-%03d", i), "add")
		if err != nil {
			return took, err
		}
		took.adds, took.starts = append(took.adds, pod.took), append(took.starts, pod.start)
		if err := pod.remove(ctx); err != nil {
			return took, err
		}
	}
	if with != nil {
		return took, with()
	}
	return took, nil
}

// pod is a pod without containers: only a network namespace.
type pod struct {
	m           *measurement
	name        string
	start, took time.Duration // see attachments
	addr        netip.Addr    // IPv4
}

// newPod creates the object of a pod, waits until the pod is bound to the node, and calls ADD. Pods with the same app share an identity.
func (m *measurement) newPod(ctx context.Context, name, app string) (*pod, error) {
	p := &pod{m: m, name: name}
	if err := m.cluster.CreatePod(ctx, kube.Pod{Name: name, Node: m.node.Name, Labels: map[string]string{"app": app}, CPU: cpuRequest}); err != nil {
		return nil, err
	}
	err := m.cluster.WaitFor(ctx, name+" to be known to the agent", func() error {
		out, err := m.node.Waggle(ctx, "db", "get", "k8s-pods", "name", namespace+"/"+name)
		if err == nil && !strings.Contains(out, name) {
			err = errors.New("there is no such row")
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if _, err := m.node.Run(ctx, "ip", "netns", "add", name); err != nil {
		return nil, err
	}
	began := time.Now()
	if _, err := p.call("VERSION"); err != nil {
		return nil, err
	}
	p.start = time.Since(began)
	began = time.Now()
	answer, err := p.call("ADD")
	p.took = time.Since(began)
	if err != nil {
		return nil, err
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(answer, &result); err != nil {
		return nil, fmt.Errorf("the answer of ADD: %w\n%s", err, answer)
	}
	for _, ip := range result.IPs {
		if ip.Address.Addr().Is4() {
			p.addr = ip.Address.Addr()
		}
	}
	if !p.addr.IsValid() {
		return nil, fmt.Errorf("ADD gave no IPv4 address: %s", answer)
	}
	return p, nil
}

func (p *pod) remove(ctx context.Context) error {
	_, err := p.call("DEL")
	_, gone := p.m.node.Run(ctx, "ip", "netns", "del", p.name)
	return errors.Join(err, gone, p.m.cluster.Delete(ctx, "/api/v1/namespaces/"+namespace+"/pods/"+p.name))
}

// call runs the plugin on the node according to section 2 of the CNI specification.
func (p *pod) call(command string) ([]byte, error) {
	n := p.m.node
	config, err := pluginConfig(n)
	if err != nil {
		return nil, err
	}
	var out, failed bytes.Buffer
	cmd := exec.Command("/opt/cni/bin/waggle-cni")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(config), &out, &failed
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "CNI_COMMAND=" + command, "CNI_CONTAINERID=bench-" + p.name, "CNI_NETNS=" + p.netns(),
		"CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=" + namespace + ";K8S_POD_NAME=" + p.name + ";K8S_POD_INFRA_CONTAINER_ID=bench-" + p.name}
	if err := n.Do(cmd.Run); err != nil {
		return nil, fmt.Errorf("%s of %s: %w\n%s%s", command, p.name, err, out.String(), failed.String())
	}
	return out.Bytes(), nil
}

func (p *pod) netns() string { return "/var/run/netns/" + p.name }

// do runs f on a thread in the pod's network namespace.
func (p *pod) do(f func() error) error {
	return p.m.node.Do(func() error {
		file, err := os.Open(p.netns())
		if err != nil {
			return err
		}
		defer file.Close()
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter %s: %w", p.netns(), err)
		}
		return f()
	})
}

// pluginConfig returns the configuration that a runtime passes to the agent's plugin according to section 3 of the CNI specification.
func pluginConfig(n *kube.Node) ([]byte, error) {
	files, err := filepath.Glob(n.Path("/etc/cni/net.d/*waggle*.conflist"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(err, errors.New("the agent has written no list of plugins"))
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		return nil, err
	}
	var list struct {
		Name, CNIVersion string
		Plugins          []map[string]any
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	if len(list.Plugins) == 0 || !strings.HasPrefix(fmt.Sprint(list.Plugins[0]["type"]), "waggle") {
		return nil, fmt.Errorf("the first plugin of %s is not Waggle's", files[0])
	}
	config := list.Plugins[0]
	config["name"], config["cniVersion"] = list.Name, list.CNIVersion
	return json.Marshal(config)
}
