package waggle_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

const (
	clusterPool  = "10.77.0.0/16"
	leasePath    = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/waggle-cluster"
	endpointPath = "/apis/cilium.io/v2/namespaces/default/ciliumendpoints"
)

// TestPrivilegedClusterRole_AllocatesCIDRsAndCleansUp runs two replicas on a cluster whose controller manager allocates no CIDRs, and kills the leader.
func TestPrivilegedClusterRole_AllocatesCIDRsAndCleansUp(t *testing.T) {
	t.Parallel()
	c := kube.Start(t, kube.Options{Nodes: 2, NodeOptions: kube.NodeOptions{Taints: []string{notReadyTaint + "=true:NoSchedule"}}})
	if err := c.InstallWaggle(t.Context(), "--set", "ipam=cluster-pool", "--set", "cluster-pool-ipv4-cidr="+clusterPool,
		"--set", "cilium-endpoint-gc-interval=1s", "--set", "enable-cilium-endpoint-slice=true"); err != nil {
		t.Fatal(err)
	}
	replicas := replicasOnBothNodes(t, c)
	cidrs := assignedCIDRs(t, c)
	for i, n := range c.Nodes {
		name := fmt.Sprint("on-", i)
		if err := c.RunPod(t.Context(), kube.Pod{Name: name, Node: n.Name}); err != nil {
			t.Fatal(err)
		}
		if ips, err := c.PodIPs(t.Context(), name); err != nil || !inside(ips, cidrs[n.Name]) {
			t.Errorf("the pod of %s has the addresses %v, %v; want one of %s", n.Name, ips, err, cidrs[n.Name])
		}
	}
	slicesAreRead(t, c, "on-0", "on-1")
	takeover(t, c, replicas)
	if err := c.RunPod(t.Context(), kube.Pod{Name: "later", Node: c.Nodes[0].Name}); err != nil {
		t.Fatal(err)
	}
	slicesAreRead(t, c, "on-0", "on-1", "later")
	if err := c.Delete(t.Context(), "/api/v1/namespaces/default/pods/later?gracePeriodSeconds=0"); err != nil {
		t.Fatal(err)
	}
	staleEndpointIsDeleted(t, c)
	freedCIDRIsReassigned(t, c, cidrs)
}

// slicesAreRead waits until each node knows the pods, and reads the other node's pods from CiliumEndpointSlices and no longer from CiliumEndpoints.
func slicesAreRead(t *testing.T, c *kube.Cluster, pods ...string) {
	t.Helper()
	for _, n := range c.Nodes {
		if err := c.WaitFor(t.Context(), n.Name+" to read slices", func() error {
			tables := map[string]string{}
			for _, name := range []string{"cilium-endpoints", "cilium-endpoints-listed", "cilium-endpointslices"} {
				out, err := n.Waggle(t.Context(), "db", "show", name)
				if err != nil {
					return err
				}
				tables[name] = out
			}
			for _, pod := range pods {
				if !strings.Contains(tables["cilium-endpoints"], "default/"+pod+" ") {
					return fmt.Errorf("%s is not known: %v", pod, tables)
				}
			}
			if strings.Contains(tables["cilium-endpoints-listed"], "default/") || !strings.Contains(tables["cilium-endpointslices"], "ces-") {
				return fmt.Errorf("CiliumEndpoints are read: %v", tables)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// replicasOnBothNodes waits for two ready replicas of the cluster role on different nodes and returns the nodes by pod.
func replicasOnBothNodes(t *testing.T, c *kube.Cluster) map[string]string {
	t.Helper()
	found := map[string]string{}
	if err := c.WaitFor(t.Context(), "two replicas of the cluster role to be ready", func() error {
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Spec     struct{ NodeName string }
				Status   struct {
					Conditions []struct{ Type, Status string }
				}
			}
		}
		if err := c.GetObject(t.Context(), "/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io/name=waggle-cluster", &list); err != nil {
			return err
		}
		clear(found)
		nodes := map[string]bool{}
		for _, pod := range list.Items {
			for _, condition := range pod.Status.Conditions {
				if condition.Type == "Ready" && condition.Status == "True" {
					found[pod.Metadata.Name], nodes[pod.Spec.NodeName] = pod.Spec.NodeName, true
				}
			}
		}
		if len(found) != 2 || len(nodes) != 2 {
			return fmt.Errorf("ready are %v", found)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// assignedCIDRs returns the CIDRs of the CiliumNodes and requires one per node, all different and from the pool.
func assignedCIDRs(t *testing.T, c *kube.Cluster) map[string]string {
	t.Helper()
	cidrs := map[string]string{}
	for _, n := range c.Nodes {
		given, err := poolCIDRs(t.Context(), c, n.Name)
		if err != nil || len(given) != 1 {
			t.Fatalf("%s has the CIDRs %v, %v", n.Name, given, err)
		}
		prefix, err := netip.ParsePrefix(given[0])
		if err != nil || !netip.MustParsePrefix(clusterPool).Overlaps(prefix) || prefix.Bits() != 24 {
			t.Errorf("%s has the CIDR %s, which is no /24 of %s", n.Name, given[0], clusterPool)
		}
		for other, cidr := range cidrs {
			if netip.MustParsePrefix(cidr).Overlaps(prefix) {
				t.Errorf("%s and %s have the CIDRs %s and %s", n.Name, other, prefix, cidr)
			}
		}
		cidrs[n.Name] = given[0]
	}
	return cidrs
}

func poolCIDRs(ctx context.Context, c *kube.Cluster, node string) ([]string, error) {
	var object struct {
		Spec struct{ IPAM struct{ PodCIDRs []string } }
	}
	err := c.GetObject(ctx, ciliumNodePath+node, &object)
	return object.Spec.IPAM.PodCIDRs, err
}

// leader returns the holder of the Lease and the number of transitions.
func leader(ctx context.Context, c *kube.Cluster) (identity string, transitions int, err error) {
	var lease struct {
		Spec struct {
			HolderIdentity   string
			LeaseTransitions int
		}
	}
	err = c.GetObject(ctx, leasePath, &lease)
	return lease.Spec.HolderIdentity, lease.Spec.LeaseTransitions, err
}

// takeover kills the leader's process, so that it cannot release the Lease.
func takeover(t *testing.T, c *kube.Cluster, replicas map[string]string) {
	t.Helper()
	identity, transitions, err := leader(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	pod, _, _ := strings.Cut(identity, "_")
	n := c.Node(replicas[pod])
	if n == nil {
		t.Fatalf("the Lease is held by %q, the replicas are %v", identity, replicas)
	}
	if _, err := n.Run(t.Context(), "sh", "-c", `for p in /proc/[0-9]*; do case "$(tr '\0' ' ' < $p/cmdline)" in */waggle-agent\ --role=cluster*) kill -9 ${p#/proc/};; esac; done`); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(t.Context(), "another leader", func() error {
		now, count, err := leader(t.Context(), c)
		if err == nil && (now == identity || now == "" || count <= transitions) {
			err = fmt.Errorf("the Lease is held by %q after %d changes, was by %q after %d", now, count, identity, transitions)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	replicasOnBothNodes(t, c) // the killed replica is started again
}

// staleEndpointIsDeleted creates a CiliumEndpoint whose Pod never existed, beside those of running pods, and waits until it is deleted.
func staleEndpointIsDeleted(t *testing.T, c *kube.Cluster) {
	t.Helper()
	object := map[string]any{"apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint", "metadata": map[string]any{"name": "stale",
		"labels": map[string]string{"app.kubernetes.io/managed-by": "waggle", "waggle.io/node": c.Nodes[0].Name}}}
	if err := c.Create(t.Context(), endpointPath, object); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(t.Context(), "the stale CiliumEndpoint to go and the others to stay", func() error {
		var list struct {
			Items []struct{ Metadata struct{ Name string } }
		}
		if err := c.GetObject(t.Context(), endpointPath, &list); err != nil {
			return err
		}
		var names []string
		for _, o := range list.Items {
			names = append(names, o.Metadata.Name)
		}
		if slices.Sort(names); !slices.Equal(names, []string{"on-0", "on-1"}) {
			return fmt.Errorf("there are %v", names)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// freedCIDRIsReassigned deletes a node permanently and requires that a new CiliumNode gets its CIDR, the lowest free one.
func freedCIDRIsReassigned(t *testing.T, c *kube.Cluster, cidrs map[string]string) {
	t.Helper()
	gone := slices.MinFunc(c.Nodes, func(a, b *kube.Node) int {
		return netip.MustParsePrefix(cidrs[a.Name]).Addr().Compare(netip.MustParsePrefix(cidrs[b.Name]).Addr())
	})
	if err := gone.StopKubelet(); err != nil { // it would register the Node again
		t.Fatal(err)
	}
	// The agent does not create its CiliumNode again either: without a Node it has none.
	if err := c.Delete(t.Context(), nodePath+gone.Name); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(t.Context(), "the CiliumNode of a deleted node to go", func() error {
		given, err := poolCIDRs(t.Context(), c, gone.Name)
		if err == nil {
			return fmt.Errorf("it is there with %v", given)
		}
		if strings.Contains(err.Error(), "404") {
			return nil
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, object := range []map[string]any{
		{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "newcomer"}},
		{"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": map[string]any{"name": "newcomer"}, "spec": map[string]any{}},
	} {
		collection := map[string]string{"Node": nodePath, "CiliumNode": ciliumNodePath}[object["kind"].(string)]
		if err := c.Create(t.Context(), strings.TrimSuffix(collection, "/"), object); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.WaitFor(t.Context(), "the newcomer to get the CIDR that is free again", func() error {
		given, err := poolCIDRs(t.Context(), c, "newcomer")
		if err == nil && !slices.Equal(given, []string{cidrs[gone.Name]}) {
			err = fmt.Errorf("it has %v, %s had %s", given, gone.Name, cidrs[gone.Name])
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
