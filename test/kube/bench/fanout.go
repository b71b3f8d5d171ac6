package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/waggle-net/waggle/test/kube"
	"github.com/waggle-net/waggle/test/kube/clusterload"
)

const (
	// watchers is the number of nodes that watch the pods of the cluster. The result is extrapolated to manyNodes.
	watchers, manyNodes = 50, 5000
	changeRate          = 50              // pod changes per second
	rounds              = 2               // each with and without watching nodes, alternating: other load on the machine then affects both
	quiet               = 3 * time.Second // without received bytes, after which all changes have arrived
)

// fanout measures the cost of a pod change on the API server, with nodes that watch CiliumEndpoints and with nodes that watch CiliumEndpointSlices.
type fanout struct {
	cluster *kube.Cluster
	node    *kube.Node
	load    clusterload.Cluster
	time    time.Duration // duration of one measurement
	changes int           // number of changes so far
}

// run needs the pods of the load. No agent may run.
func (f *fanout) run(ctx context.Context) (err error) {
	fmt.Printf("\n%-28s %-22s %12s %14s %12s %16s %16s\n", "pods change", "nodes follow", "CPU/change", "CPU/node more", "to a node", "CPU, 5,000 nodes", "traffic, 5,000")
	const endpoints = "/apis/cilium.io/v2/ciliumendpoints"
	if err := f.measure(ctx, "all CiliumEndpoints", func(int) string { return endpoints }); err != nil {
		return err
	}
	// An agent that reads slices also watches the CiliumEndpoints of its node.
	if err := f.measure(ctx, "own CiliumEndpoints", func(i int) string { return fmt.Sprintf("%s?labelSelector=waggle.io%%2Fnode%%3Dnode-%d", endpoints, i) }); err != nil {
		return err
	}
	role, err := f.node.StartProcess("cluster-role", f.node.Tool("waggle-agent"), "--role=cluster", "--k8s-kubeconfig-path="+kube.AgentKubeconfig,
		"--enable-cilium-endpoint-slice", "--operator-api-serve-addr=")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, role.Stop()) }()
	if err := f.awaitSlices(ctx); err != nil {
		return err
	}
	return f.measure(ctx, "CiliumEndpointSlices", func(int) string { return slicesPath })
}

// slicesPath is the path of all CiliumEndpointSlices.
const slicesPath = "/apis/cilium.io/v2alpha1/ciliumendpointslices"

// awaitSlices waits until the slices are complete. The cluster role writes ten slices a second, and a slice has pods of one namespace, so many namespaces take
// minutes: only a wait without a new slice fails.
func (f *fanout) awaitSlices(ctx context.Context) error {
	for written, complete := int64(0), false; !complete; {
		before := written
		if err := f.cluster.WaitFor(ctx, fmt.Sprintf("more than %d slices, or the mark that they are complete", before), func() (err error) {
			if _, err := f.cluster.Get(ctx, slicesPath+"/ces-0-complete"); err == nil {
				complete = true
				return nil
			}
			if written, err = f.countSlices(ctx); err == nil && written <= before {
				err = fmt.Errorf("there are %d", written)
			}
			return err
		}); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "\r%d CiliumEndpointSlices", written)
	}
	fmt.Fprintln(os.Stderr)
	return nil
}

// countSlices returns the number of CiliumEndpointSlices.
func (f *fanout) countSlices(ctx context.Context) (int64, error) {
	var list struct {
		Metadata metav1.ListMeta
		Items    []struct{}
	}
	if err := f.cluster.GetObject(ctx, slicesPath+"?limit=1", &list); err != nil {
		return 0, err
	}
	n := int64(len(list.Items))
	if more := list.Metadata.RemainingItemCount; more != nil {
		n += *more
	}
	return n, nil
}

// measure prints two lines: for changes of pods in arbitrary order, and for changes in the order of creation, such as a Deployment's pods. Node i watches
// path(i).
func (f *fanout) measure(ctx context.Context, follow string, path func(i int) string) error {
	for _, pattern := range []struct {
		name string
		pod  func(n int) int
	}{
		{"all over the cluster", func(n int) int { return n * 7919 % f.load.Pods }},
		{"one after the other", func(n int) int { return n % f.load.Pods }},
	} {
		var alone, followed, bytes float64
		for range rounds {
			seconds, _, err := f.changed(ctx, 0, pattern.pod, path)
			if err != nil {
				return err
			}
			alone += seconds / rounds
			seconds, received, err := f.changed(ctx, watchers, pattern.pod, path)
			if err != nil {
				return err
			}
			followed, bytes = followed+seconds/rounds, bytes+received/rounds
		}
		each := (followed - alone) / watchers
		fmt.Printf("%-28s %-22s %9.2f ms %11.1f us %9.2f kB %13.0f ms %13.1f MB\n", pattern.name, follow, alone*1e3, each*1e6, bytes/1e3, (alone+each*manyNodes)*1e3, bytes*manyNodes/1e6)
	}
	return nil
}

// changed changes pods while nodes watch, and returns per change the seconds of CPU time of the API server and the bytes that one node receives.
func (f *fanout) changed(ctx context.Context, nodes int, pod func(int) int, path func(int) string) (seconds, bytes float64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var received atomic.Int64
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()
	for i := range nodes {
		body, err := f.watch(ctx, path(i))
		if err != nil {
			return 0, 0, err
		}
		all.Go(func() {
			defer func() { _ = body.Close() }()
			_, _ = io.Copy(counter{&received}, body) // until ctx ends
		})
	}
	time.Sleep(quiet) // let the watches start
	rest, err := f.spent(ctx, func() error { time.Sleep(quiet); return nil })
	if err != nil {
		return 0, 0, err
	}
	began, before := time.Now(), received.Load()
	spent, err := f.spent(ctx, func() error {
		if err := f.change(ctx, pod); err != nil {
			return err
		}
		for last := int64(-1); last != received.Load(); time.Sleep(quiet) {
			last = received.Load()
		}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	spent -= rest * time.Since(began).Seconds() / quiet.Seconds()
	changes := changeRate * f.time.Seconds()
	return spent / changes, float64(received.Load()-before) / changes / float64(max(1, nodes)), nil
}

// counter counts bytes.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) { c.n.Add(int64(len(p))); return len(p), nil }

// watch opens a watch on a separate connection, as each node has.
func (f *fanout) watch(ctx context.Context, path string) (io.ReadCloser, error) {
	collection, query, _ := strings.Cut(path, "?")
	var list struct{ Metadata metav1.ListMeta }
	body, err := f.cluster.Get(ctx, collection+"?limit=1")
	if err == nil {
		err = json.Unmarshal(body, &list)
	}
	if err != nil {
		return nil, err
	}
	config := f.cluster.Config()
	secure, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+collection+"?watch=true&allowWatchBookmarks=true&resourceVersion="+list.Metadata.ResourceVersion+"&"+query, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+config.BearerToken)
	response, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: secure, DialContext: config.Dial, DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("watch %s: %s", path, response.Status), response.Body.Close())
	}
	return response.Body, nil
}

// change changes pods at [changeRate]. It changes a named port, which other nodes must learn.
func (f *fanout) change(ctx context.Context, pod func(int) int) error {
	config := f.cluster.Config()
	config.QPS, config.Burst = -1, -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(time.Second / changeRate)
	defer ticker.Stop()
	for n := range changeRate * int(f.time/time.Second) {
		f.changes++
		patch := fmt.Sprintf(`{"status": {"named-ports": [{"name": "changed", "port": %d, "protocol": "TCP"}]}}`, 1+f.changes%65535)
		namespace, name := f.load.CiliumEndpointOf(pod(n))
		if _, err := client.Resource(clusterload.CiliumEndpoints).Namespace(namespace).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return nil
}

// spent returns the CPU time in seconds that the API server uses during do.
func (f *fanout) spent(ctx context.Context, do func() error) (float64, error) {
	before, err := f.cpu(ctx)
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := f.cpu(ctx)
	return after - before, err
}

// cpu returns the CPU time of the API server in seconds.
func (f *fanout) cpu(ctx context.Context) (float64, error) {
	body, err := f.cluster.Get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if value, found := strings.CutPrefix(line, "process_cpu_seconds_total "); found {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, errors.New("the API server does not report its CPU time")
}
