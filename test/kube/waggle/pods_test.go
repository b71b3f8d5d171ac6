package waggle_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kube"
)

// installed starts a cluster of the test's own with one node and the output of "waggle install".
func installed(t *testing.T, options kube.Options, args ...string) (*kube.Cluster, *kube.Node) {
	t.Helper()
	options.Taints = append(options.Taints, notReadyTaint+"=true:NoSchedule")
	c := kube.Start(t, options)
	args = append(args, "--set", "enable-ipv6=true")
	if err := c.InstallWaggle(t.Context(), args...); err != nil {
		t.Fatal(err)
	}
	n := c.Nodes[0]
	if err := n.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c, n
}

// manyAtOnce creates many pods on a node concurrently, as a Deployment with many replicas does.
func manyAtOnce(t *testing.T, shared *kube.Cluster) {
	count := 15
	if soak() {
		count = 30
	}
	c, n := installedNode(t, shared, kube.NodeOptions{})
	routePods(t, c, n)
	if err := c.WaitFor(t.Context(), "the self-test's pod to be gone", func() error {
		out, err := n.Run(t.Context(), "sh", "-c", "ip -o link | grep lxc; true")
		if err == nil && out != "" {
			err = errors.New(out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	before := inventory(t, n)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	began := time.Now()
	forEach(t, count, func(i int) error {
		return c.CreatePod(ctx, kube.Pod{Name: podName(i), Labels: map[string]string{"app": "many"}})
	})
	forEach(t, count, func(i int) error { return c.WaitPodReady(ctx, podName(i)) })
	t.Logf("%d pods were created and Ready within %s", count, time.Since(began).Round(time.Millisecond))

	addresses := make([][]string, count)
	forEach(t, count, func(i int) (err error) {
		addresses[i], err = c.PodIPs(ctx, podName(i))
		if err == nil && len(addresses[i]) != 2 {
			err = fmt.Errorf("%s has the addresses %v, want one of each family", podName(i), addresses[i])
		}
		return err
	})
	forEach(t, count, func(i int) error {
		script := ""
		for _, target := range append(append([]string{n.IPv4, n.IPv6}, addresses[(i+1)%count]...), kube.ServerAddresses()...) {
			script += "ping -c 1 -W 15 " + target + " >/dev/null || { echo no answer from " + target + "; exit 1; }; "
		}
		script += fmt.Sprintf("nc -w 15 %s %s </dev/null || { echo the API server refuses; exit 1; }", kube.ServerAddresses()[0], kube.ServerPort)
		out, err := c.Exec(ctx, podName(i), "sh", "-c", script)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", podName(i), out, err)
		}
		return nil
	})
	if err := c.WaitFor(t.Context(), "the CiliumEndpoints of all pods", func() error {
		endpoints, err := c.Kubectl(ctx, "get", "ciliumendpoints", "-o", "name")
		if err == nil && strings.Count(endpoints, "\n") != count {
			err = fmt.Errorf("want %d CiliumEndpoints:\n%s", count, endpoints)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	reportLatency(t, n)

	forEach(t, count, func(i int) error { return c.DeletePod(ctx, podName(i)) })
	if err := c.WaitFor(t.Context(), "nothing to be left of the pods", func() error {
		if after := inventory(t, n); after != before {
			return fmt.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		left, err := c.Kubectl(ctx, "get", "ciliumendpoints", "-o", "name")
		if err == nil && left != "" {
			err = errors.New("CiliumEndpoints are left: " + left)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

func podName(i int) string { return fmt.Sprintf("pod-%02d", i) }

// forEach calls one for 0 to count-1 with a few concurrent calls.
func forEach(t *testing.T, count int, one func(i int) error) {
	t.Helper()
	var all errgroup.Group
	all.SetLimit(8)
	for i := range count {
		all.Go(func() error { return one(i) })
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
}

// routePods adds routes on the control plane's router for the node's pods.
func routePods(t *testing.T, c *kube.Cluster, n *kube.Node) {
	t.Helper()
	row := rows[struct{ IPv4, IPv6 struct{ AllocRange string } }](t, n, "local-node")[0]
	for _, cidr := range []string{row.IPv4.AllocRange, row.IPv6.AllocRange} {
		if cidr == "" {
			continue
		}
		if err := c.Route(cidr, n); err != nil {
			t.Fatal(err)
		}
	}
}

// inventory lists resources that pods may leave on a node after a failure: links, addresses, state files, namespaces.
func inventory(t *testing.T, n *kube.Node) string {
	t.Helper()
	script := `ip -o link | awk -F': ' '{print $2}' | sed 's/@.*//' | sort; (ip -o route; ip -6 -o route) | grep -v ' mtu 1450'; ls /run/netns /run/waggle/endpoints /run/waggle/deleteQueue; ` +
		n.Tool("waggle") + ` endpoint list; ` + n.Tool("waggle") + ` ipam list | grep -v quarantine | tr -s ' '; for m in bpf_endpoints bpf_links ipcache; do ` +
		n.Tool("waggle") + ` map get $m 2>/dev/null; done | grep -v 'identity=[46] \|node=[1-9]' | tr -s ' '` // excludes other nodes, their routes and pods, and health checks; column widths depend on the rows
	out, err := n.Run(t.Context(), "sh", "-c", script+"; true")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// pluginLog is a path on the node, where the runtime calls the plugin.
const pluginLog = "/var/log/waggle-cni.log"

// reportLatency logs the start latency of pods that kubelet measured, and the part of the plugin, including the agent.
func reportLatency(t *testing.T, n *kube.Node) {
	t.Helper()
	text, err := kubeletMetrics(n)(t.Context())
	if err != nil {
		t.Error(err)
		return
	}
	for _, name := range []string{"kubelet_pod_start_duration_seconds", "kubelet_run_podsandbox_duration_seconds"} {
		h := readHistogram(text, name)
		if h.count == 0 {
			t.Errorf("kubelet has no %s", name)
		}
		t.Logf("%-40s p50 <= %s, p99 <= %s, mean %s, of %d", name, h.percentile(50), h.percentile(99), h.mean(), h.count)
	}
	log, err := n.ReadFile(pluginLog)
	if err != nil {
		t.Error(err)
		return
	}
	for _, command := range []string{"ADD", "DEL"} {
		if all := pluginTimes(string(log), command); len(all) > 0 {
			t.Logf("%-40s p50 %s, p99 %s, of %d", "waggle-cni "+command, all[(len(all)-1)/2], all[(len(all)-1)*99/100], len(all))
		} else if command == "ADD" {
			t.Errorf("the plugin has logged no ADD:\n%s", log)
		}
	}
}

// pluginTimes returns the sorted durations of successful commands.
func pluginTimes(log, command string) (all []time.Duration) {
	for line := range strings.Lines(log) {
		if !strings.Contains(line, "The command succeeded") || !strings.Contains(line, command) {
			continue
		}
		_, rest, _ := strings.Cut(line, "duration=")
		text, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		if d, err := time.ParseDuration(text); err == nil {
			all = append(all, d.Round(10*time.Microsecond))
		}
	}
	slices.Sort(all)
	return all
}

// histogram is a Prometheus histogram, summed over all labels.
type histogram struct {
	bounds []float64
	counts map[float64]int // number of observations up to an upper bound
	sum    float64
	count  int
}

func readHistogram(text, name string) histogram {
	h := histogram{counts: map[float64]int{}}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		number, err := strconv.ParseFloat(value, 64)
		series, labels, _ := strings.Cut(key, "{")
		if err != nil {
			continue
		}
		switch series {
		case name + "_sum":
			h.sum += number
		case name + "_count":
			h.count += int(number)
		case name + "_bucket":
			_, rest, _ := strings.Cut(labels, `le="`)
			bound, _, _ := strings.Cut(rest, `"`)
			if le, err := strconv.ParseFloat(bound, 64); err == nil { // of +Inf as well
				h.counts[le] += int(number)
			}
		}
	}
	h.bounds = slices.Sorted(maps.Keys(h.counts))
	return h
}

// percentile returns the upper bound of the bucket that contains percentile p.
func (h histogram) percentile(p int) time.Duration {
	for _, bound := range h.bounds {
		if h.counts[bound]*100 >= h.count*p {
			return seconds(bound)
		}
	}
	return 0
}

func (h histogram) mean() time.Duration { return seconds(h.sum / max(1, float64(h.count))) }

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond)
}

func kubeletMetrics(n *kube.Node) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		return n.Run(ctx, "wget", "--no-check-certificate", "-q", "-O", "-", "https://"+net.JoinHostPort("127.0.0.1", "10250")+"/metrics")
	}
}
