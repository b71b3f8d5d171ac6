package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"testing"
)

// Tenant adds a node to the cluster for one test; the cleanup of the test removes the node. The returned view contains only this node. Its namespace belongs
// to the test, and all pods of that namespace run on the test's node. The tenants share all other objects: the view returns errors for calls that disturb the
// control plane.
func (c *Cluster) Tenant(t testing.TB, options NodeOptions) (*Cluster, *Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	view := &Cluster{URL: c.URL, LogDir: c.LogDir, dir: c.dir, options: Options{NodeOptions: options, ClusterCIDR: c.options.ClusterCIDR},
		bin: c.bin, caPEM: c.caPEM, control: c.control, api: c.api, host: c}
	n, err := view.newNode()
	if n != nil {
		view.Nodes, view.Namespace = []*Node{n}, "on-"+n.Name
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(n.Name + ": " + view.keepLogs(t.Name()))
			}
			if err := view.leave(); err != nil {
				t.Error(err)
			}
		})
	}
	if err == nil {
		err = errors.Join(view.writeKubeconfig(view.adminKubeconfig(), view.URL, AdminToken, view.Namespace), view.CreateNamespace(ctx, view.Namespace, nil), n.startRuntime(ctx))
	}
	if err == nil {
		err = view.startKubelets(ctx)
	}
	if err == nil && options.OwnDaemonSet {
		err = view.copyDaemonSet(ctx)
	}
	if err != nil {
		t.Fatalf("add a node for %s: %v", t.Name(), err)
	}
	return view, n
}

// CreateNamespace creates a namespace whose pods run on the tenant's node. The caller must delete it with [Cluster.DeleteNamespace].
func (c *Cluster) CreateNamespace(ctx context.Context, name string, labels map[string]string) error {
	return c.Create(ctx, "/api/v1/namespaces", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name,
		"labels": labels, "annotations": map[string]string{"scheduler.alpha.kubernetes.io/node-selector": "kubernetes.io/hostname=" + c.Nodes[0].Name}}})
}

// DeleteNamespace deletes a namespace and does not wait until the namespace is empty.
func (c *Cluster) DeleteNamespace(ctx context.Context, name string) error {
	return ignoreNotFound(c.Delete(ctx, "/api/v1/namespaces/"+name))
}

// leave removes the tenant's node, then its objects. In this order no kubelet is left that would have to stop the pods.
func (c *Cluster) leave() error {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	n := c.Nodes[0]
	return errors.Join(n.PowerOff(), os.RemoveAll(c.path(n.Name)), os.RemoveAll(c.adminKubeconfig()), c.deleteDaemonSet(ctx),
		ignoreNotFound(c.Delete(ctx, "/api/v1/nodes/"+n.Name)),
		ignoreNotFound(c.Delete(ctx, "/apis/cilium.io/v2/ciliumnodes/"+n.Name)),
		c.deletePodsOf(ctx, n), c.DeleteNamespace(ctx, c.Namespace))
}

// deletePodsOf deletes the objects of all pods of a node without waiting for its kubelet.
func (c *Cluster) deletePodsOf(ctx context.Context, n *Node) error {
	var list struct{ Items []object }
	if err := c.GetObject(ctx, "/api/v1/pods?fieldSelector=spec.nodeName%3D"+n.Name, &list); err != nil {
		return err
	}
	var failed error
	for _, p := range list.Items {
		path := c.podPath(p.Metadata.Namespace+"/"+p.Metadata.Name) + "?gracePeriodSeconds=0"
		failed = errors.Join(failed, ignoreNotFound(c.Delete(ctx, path)))
	}
	return failed
}

func ignoreNotFound(err error) error {
	if isNotFound(err) {
		return nil
	}
	return err
}

// AssignPodCIDRs sets the pod CIDRs of a registered Node, as the controller manager of a cluster with [Options.ClusterCIDR] does. The CIDRs of a Node are
// immutable; a Node that is deleted and registered again has none.
func (n *Node) AssignPodCIDRs(ctx context.Context, cidrs ...string) error {
	_, err := n.cluster.Request(ctx, http.MethodPatch, "/api/v1/nodes/"+n.Name,
		fmt.Appendf(nil, `{"spec": {"podCIDR": %q, "podCIDRs": %s}}`, cidrs[0], jsonText(cidrs)))
	return err
}
