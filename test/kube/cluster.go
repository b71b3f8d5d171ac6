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

// Options say how a cluster differs from the default: one node, which gets no CIDR.
type Options struct {
	Nodes         int      // 0 means 1
	ClusterCIDR   string   // the controller manager allocates nodes' CIDRs from these ranges; "" leaves nodes without
	APIServerArgs []string // further flags of the API server
	KubeletArgs   []string // further flags of the kubelets
	Taints        []string // of new nodes, as "key=value:Effect"
	NoBPFFS       bool     // leaves /sys/fs/bpf of nodes unmounted, as on a machine without systemd
	NoKubelet     bool     // nodes run containerd only, until [Node.StartKubelet]
	LogDir        string   // for the components' logs, and stays; "" means one that goes with the cluster
}

// Cluster is a running Kubernetes.
type Cluster struct {
	Nodes   []*Node
	URL     string // of the API server, inside the cluster's namespaces
	LogDir  string // a file for each component
	dir     string // all that the cluster writes
	options Options
	bin     binaries
	caPEM   []byte
	control place
	api     *http.Client

	etcd, apiserver, second, controllers, scheduler *Process

	lock       sync.Mutex // guards components: nodes start side by side
	components []*Process // those that ought to run; the last of each name
}

// Start starts a cluster that ends with the test. If the test fails, the logs are kept and their folder is printed.
func Start(t testing.TB, options Options) *Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
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
	options.Nodes = max(options.Nodes, 1)
	bin, err := findBinaries()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(stateRoot, "kube-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, LogDir: orElse(options.LogDir, filepath.Join(dir, "logs")), options: options, bin: bin,
		URL: "https://" + net.JoinHostPort(apiIPv4, securePort)}
	if err := errors.Join(os.MkdirAll(c.LogDir, 0o755), c.writeCredentials(), c.makeClient(), c.makeBridge()); err != nil {
		return c, err
	}
	if err := c.startEtcd(); err != nil {
		return c, err
	}
	for i := range options.Nodes {
		n, err := c.newNode(i)
		c.Nodes = append(c.Nodes, n) // a node that is half-made is to be removed as well
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
		all.Go(func() error { return n.startContainerd(ctx) })
	}
	if err := all.Wait(); err != nil || c.options.NoKubelet {
		return err
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
	// Pods are refused before the controller manager has made this.
	return c.WaitFor(ctx, "ServiceAccount default/default", func() error {
		_, err := c.Get(ctx, "/api/v1/namespaces/default/serviceaccounts/default")
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

func (c *Cluster) processes() []*Process {
	c.lock.Lock()
	defer c.lock.Unlock()
	return slices.Clone(c.components)
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
