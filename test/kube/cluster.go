package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// Ranges for [Options.ClusterCIDR].
const (
	IPv4CIDR      = "10.244.0.0/16"
	DualStackCIDR = "10.244.0.0/16,fd00:10:244::/48"
)

// NoNodes is for [Options.Nodes] of a cluster whose nodes are those of its tenants.
const NoNodes = -1

// Options say how a cluster differs from the default: one node, which gets no CIDR.
type Options struct {
	NodeOptions
	Nodes         int      // 0 means 1
	ClusterCIDR   string   // the controller manager allocates nodes' CIDRs from these ranges; "" leaves nodes without
	APIServerArgs []string // further flags of the API server
	Controllers   string   // that the controller manager runs, separated by commas; "" means those that tests need
	LogDir        string   // for the components' logs, and stays; "" means one that goes with the cluster
}

// NodeOptions say how a node differs from the default.
type NodeOptions struct {
	KubeletArgs []string // further flags of kubelet
	Taints      []string // of the new node, as "key=value:Effect"
	NoBPFFS     bool     // leaves /sys/fs/bpf unmounted, as on a machine without systemd
	NoKubelet   bool     // the node runs containerd only, until [Node.StartKubelet]

	// OwnDaemonSet gives a tenant a copy of the DaemonSet that [Cluster.InstallShared] has made, which the tenant may change.
	OwnDaemonSet bool
}

// Cluster is a running Kubernetes, or a tenant's view of one.
type Cluster struct {
	Nodes     []*Node
	URL       string // of the API server, inside the cluster's namespaces
	LogDir    string // a file for each component
	Namespace string // of pods whose names do not say theirs
	dir       string // all that the cluster writes
	options   Options
	bin       binaries
	caPEM     []byte
	control   place
	api       *http.Client
	host      *Cluster // of which this is a tenant's view; nil for a cluster of its own
	daemonSet string   // the agents', when the tenant has a copy of its own

	etcd, apiserver, second, controllers, scheduler *Process

	lock       sync.Mutex // guards what follows: nodes start side by side
	components []*Process // those that ought to run; the last of each name
	made       int        // nodes so far: no number is used twice
	images     []string   // archives that new nodes load
}

// Start starts a cluster that ends with the test. If the test fails, the logs are kept and their folder is printed.
func Start(t testing.TB, options Options) *Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	began := time.Now()
	c, err := New(ctx, options)
	if c != nil {
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(c.keepLogs(t.Name()))
			}
			if err := c.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatalf("start a cluster: %v", err)
	}
	t.Logf("a cluster of %d nodes started within %s", len(c.Nodes), time.Since(began).Round(10*time.Millisecond))
	return c
}

// New starts a cluster inside [Contain] and returns when the control plane is ready and kubelets have registered their
// nodes. The cluster that comes with an error is to be stopped, too.
func New(ctx context.Context, options Options) (*Cluster, error) {
	if os.Getpid() != 1 {
		return nil, errors.New("not inside Contain: call kube.Main in TestMain")
	}
	switch options.Nodes {
	case NoNodes:
		options.Nodes = 0
	case 0:
		options.Nodes = 1
	}
	bin, err := findBinaries()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(stateRoot, "kube-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, LogDir: orElse(options.LogDir, filepath.Join(dir, "logs")), Namespace: "default", options: options, bin: bin,
		images: []string{filepath.Join(bin.kube, "pause.tar"), filepath.Join(bin.kube, "client.tar")},
		URL:    "https://" + net.JoinHostPort(apiIPv4, securePort)}
	if err := errors.Join(os.MkdirAll(c.LogDir, 0o755), c.writeCredentials(), c.makeClient(), c.makeBridge()); err != nil {
		return c, err
	}
	if err := c.startEtcd(); err != nil {
		return c, err
	}
	for range options.Nodes {
		n, err := c.newNode()
		if n != nil {
			c.Nodes = append(c.Nodes, n) // a node that is half-made is to be removed as well
		}
		if err != nil {
			return c, err
		}
	}
	return c, c.startAll(ctx)
}

// startAll starts what can be started side by side: the control plane, and containerd with the images on each node.
func (c *Cluster) startAll(ctx context.Context) error {
	var all errgroup.Group
	all.Go(func() error {
		if err := c.StartAPIServer(ctx); err != nil {
			return err
		}
		return errors.Join(c.StartControllerManager(), c.StartScheduler())
	})
	for _, n := range c.Nodes {
		all.Go(func() error { return n.startRuntime(ctx) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	return c.startKubelets(ctx)
}

// startKubelets returns when the nodes are registered and pods can be made.
func (c *Cluster) startKubelets(ctx context.Context) error {
	if c.options.NoKubelet {
		return nil
	}
	for _, n := range c.Nodes {
		if err := n.StartKubelet(); err != nil {
			return err
		}
	}
	for _, n := range c.Nodes {
		if err := n.WaitRegistered(ctx); err != nil {
			return err
		}
	}
	// Pods are rejected before the controller manager has made this.
	return c.WaitFor(ctx, "ServiceAccount "+c.Namespace+"/default", func() error {
		_, err := c.Get(ctx, "/api/v1/namespaces/"+c.Namespace+"/serviceaccounts/default")
		return err
	})
}

// Node returns a node by name.
func (c *Cluster) Node(name string) *Node {
	i := slices.IndexFunc(c.Nodes, func(n *Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return c.Nodes[i]
}

// Stop ends everything and removes what the cluster has written.
func (c *Cluster) Stop() error {
	var failed error
	for _, n := range c.Nodes {
		failed = errors.Join(failed, n.PowerOff())
	}
	for _, p := range []*Process{c.scheduler, c.controllers, c.second, c.apiserver, c.etcd} {
		failed = errors.Join(failed, p.Kill())
	}
	return errors.Join(failed, closeNamespaces(c.control.namespaces), os.RemoveAll(c.dir))
}

func (c *Cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

func (c *Cluster) logPath(name string) string { return filepath.Join(c.LogDir, name+".log") }

// component adds a process to those that ought to run until they are told to end.
func (c *Cluster) component(p *Process, err error) (*Process, error) {
	if err != nil {
		return nil, err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	c.components = slices.DeleteFunc(c.components, func(old *Process) bool { return old.Name == p.Name })
	c.components = append(c.components, p)
	return p, nil
}

// processes are the components of the cluster; for a tenant, those of the control plane and of its own node.
func (c *Cluster) processes() (all []*Process) {
	if c.host != nil {
		all = slices.DeleteFunc(c.host.processes(), func(p *Process) bool { return strings.HasPrefix(p.Name, nodePrefix) })
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	return append(all, c.components...)
}

func (c *Cluster) start(name string, at place, argv ...string) (*Process, error) {
	return startProcess(at, name, c.logPath(name), argv...)
}

// keepLogs copies the logs to a folder that outlives this program.
func (c *Cluster) keepLogs(name string) string {
	kept, err := os.MkdirTemp("/tmp", "waggle-kube-logs-")
	if err == nil {
		kept = filepath.Join(kept, filepath.Base(name))
		err = os.CopyFS(kept, os.DirFS(c.LogDir))
	}
	if err != nil {
		return fmt.Sprintf("the logs of the cluster are lost: %v", err)
	}
	return "the logs of the cluster are in " + kept
}
