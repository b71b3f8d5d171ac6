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

// NoNodes is a value of [Options.Nodes] for a cluster that has only the nodes of its tenants.
const NoNodes = -1

// Options configures a cluster. The default is one node without a pod CIDR.
type Options struct {
	NodeOptions
	Nodes         int      // 0 means 1
	ClusterCIDR   string   // the controller manager allocates nodes' CIDRs from these ranges; "" leaves nodes without
	APIServerArgs []string // further flags of the API server
	Controllers   string   // comma-separated controllers of the controller manager; "" means the ones that tests need
	LogDir        string   // persistent folder for the components' logs; "" means one that is removed with the cluster
}

// NodeOptions configures a node.
type NodeOptions struct {
	KubeletArgs []string // further flags of kubelet
	Taints      []string // taints of the new node, as "key=value:Effect"
	NoBPFFS     bool     // leaves /sys/fs/bpf unmounted, as on a machine without systemd
	NoKubelet   bool     // the node runs containerd only, until [Node.StartKubelet]

	// OwnDaemonSet gives a tenant its own copy of the DaemonSet of [Cluster.InstallShared]. The tenant may change the copy.
	OwnDaemonSet bool

	// InstallFlags are further flags of "waggle install" for that copy. The copy then consists of the printed DaemonSet and ConfigMap.
	InstallFlags []string
}

// Cluster is a running Kubernetes cluster, or a tenant's view of one.
type Cluster struct {
	Nodes     []*Node
	URL       string // of the API server; reachable from the cluster's namespaces
	LogDir    string // a file for each component
	Namespace string // default for pods without a namespace
	dir       string // holds all files of the cluster
	options   Options
	bin       binaries
	caPEM     []byte
	control   netNS
	api       *http.Client
	host      *Cluster // the cluster behind a tenant's view; nil for a cluster itself
	daemonSet string   // name of the tenant's own copy of the agents' DaemonSet, and of its own ConfigMap; "" without a copy

	sharedFlags []string // flags of [Cluster.InstallShared]; unchanged once there are tenants

	etcd, apiserver, second, controllers, scheduler *Process

	lock       sync.Mutex // guards the fields below: nodes start concurrently
	components []*Process // processes expected to run; the latest of each name
	made       int        // nodes created so far: no number is reused
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

// New starts a cluster inside [Contain] and returns when the control plane is ready and kubelets have registered their nodes. The caller must also stop a
// cluster that is returned with an error.
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
			c.Nodes = append(c.Nodes, n) // before boot: Stop must also remove an incomplete node
		}
		if err != nil {
			return c, err
		}
	}
	return c, c.startAll(ctx)
}

// startAll starts concurrently: the control plane, and on each node containerd with the images.
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

// startKubelets returns when the nodes are registered and pods can be created.
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
	// The API server rejects pods until the controller manager has created this ServiceAccount.
	return c.WaitFor(ctx, "ServiceAccount "+c.Namespace+"/default", func() error {
		_, err := c.Get(ctx, "/api/v1/namespaces/"+c.Namespace+"/serviceaccounts/default")
		return err
	})
}

// Node returns the node with a name.
func (c *Cluster) Node(name string) *Node {
	i := slices.IndexFunc(c.Nodes, func(n *Node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return c.Nodes[i]
}

// Stop ends all processes of the cluster and removes its files.
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

// component registers a started process as expected to run until the cluster stops it.
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

// processes returns the components of the cluster; for a tenant, the components of the control plane and of the tenant's node.
func (c *Cluster) processes() (all []*Process) {
	if c.host != nil {
		all = slices.DeleteFunc(c.host.processes(), func(p *Process) bool { return strings.HasPrefix(p.Name, nodePrefix) })
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	return append(all, c.components...)
}

func (c *Cluster) start(name string, at netNS, argv ...string) (*Process, error) {
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
