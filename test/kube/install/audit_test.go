package install

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// use is a permission that RBAC grants, or a request in an audit log.
type use struct{ account, resource, verb string }

// granted returns the permissions in the roles that "waggle install" prints.
func granted(t *testing.T, c *kube.Cluster) map[use]bool {
	t.Helper()
	out, err := c.Nodes[0].Waggle(t.Context(), "install", "--only", "rbac", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Items []struct {
			Kind     string
			Metadata struct{ Name string }
			Rules    []struct{ APIGroups, Resources, Verbs []string }
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	all := map[use]bool{}
	for _, role := range list.Items {
		for _, r := range role.Rules {
			for _, verb := range r.Verbs {
				all[use{role.Metadata.Name, strings.TrimSuffix(r.Resources[0]+"."+r.APIGroups[0], "."), verb}] = true
			}
		}
	}
	if len(all) < 20 {
		t.Fatalf("only %d verbs are granted: the search is broken", len(all))
	}
	return all
}

const accounts = "system:serviceaccount:kube-system:"

// requests returns the audited requests of Waggle's accounts so far.
func requests(t *testing.T, c *kube.Cluster) []kube.AuditEvent {
	t.Helper()
	return c.AuditLog(t, func(e kube.AuditEvent) bool { return strings.HasPrefix(e.User.Username, accounts+"waggle") })
}

// used returns the requests of Waggle's accounts, from index first on, that the API server has allowed, and the ones that RBAC has denied.
func used(t *testing.T, c *kube.Cluster, first int) (allowed map[use]bool, denied []string) {
	t.Helper()
	allowed = map[use]bool{}
	for _, e := range requests(t, c)[first:] {
		o := e.ObjectRef
		resource := o.Resource
		if o.Subresource != "" {
			resource += "/" + o.Subresource
		}
		u := use{strings.TrimPrefix(e.User.Username, accounts), strings.TrimSuffix(resource+"."+o.APIGroup, "."), e.Verb}
		switch {
		case e.ResponseStatus.Code == 403:
			denied = append(denied, fmt.Sprintf("%s: %s %s", u.account, e.Verb, e.RequestURI))
		case resource != "":
			allowed[u] = true
		}
	}
	slices.Sort(denied)
	return allowed, slices.Compact(denied)
}

// rare maps verbs that only failures need to the tests that cause these failures.
var rare = map[use]string{
	{"waggle-cluster", "ciliumnodes.cilium.io", "get"}:             "a CiliumNode that changed since the list: cells/cluster/clusterpool",
	{"waggle-cluster", "ciliumendpointslices.cilium.io", "get"}:    "a slice that changed since it was read: cells/cluster/ciliumendpointslices",
	{"waggle-cluster", "ciliumendpointslices.cilium.io", "delete"}: "a slice that has lost its last pod: cells/cluster/ciliumendpointslices",
	{"waggle", "pods", "get"}:                                      "an ADD that comes before the watch of pods: cells/endpoint/endpointmanager",
	{"waggle", "ciliumidentities.cilium.io", "get"}:                "a number that another node took: cells/identity/identityallocator",
	{"waggle", "ciliumendpoints.cilium.io", "get"}:                 "an object of that name that is there already: cells/endpoint/ciliumendpoints",
	{"waggle", "ingresses.networking.k8s.io", "list"}:              "agents of the previous build during an update: pkg/install/permissions.go",
	{"waggle", "ingresses.networking.k8s.io", "watch"}:             "agents of the previous build during an update: pkg/install/permissions.go",
}

// streamed reports whether a verb is the list of a resource that is watched. Where the API server streams first lists, nothing else lists; other servers need it
// (cells/kubernetes/k8stables).
func streamed(have map[use]bool, u use) bool {
	return u.verb == "list" && have[use{u.account, u.resource, "watch"}]
}

// verbsAreExact runs a cluster with the printed accounts and compares the granted permissions with the used ones.
func verbsAreExact(t *testing.T, c *kube.Cluster) {
	first := len(requests(t, c))
	if err := c.InstallWaggle(t.Context(), "--set", "ipam=cluster-pool", "--set", "annotate-k8s-node=true", "--set", "cluster-pool-ipv4-cidr=10.244.0.0/16",
		"--set", "cilium-endpoint-gc-interval=1s", "--set", "identity-gc-interval=1s", "--set", "identity-heartbeat-timeout=2s", "--set", "enable-cilium-endpoint-slice=true"); err != nil {
		t.Fatal(err)
	}
	live(t, c)
	all := granted(t, c)
	err := c.WaitFor(t.Context(), "each verb to be used", func() error {
		have, denied := used(t, c, first)
		if len(denied) > 0 {
			t.Fatalf("RBAC refuses what is needed:\n%s", strings.Join(denied, "\n"))
		}
		var unused []string
		for u := range maps.Keys(all) {
			if !have[u] && rare[u] == "" && !streamed(have, u) {
				unused = append(unused, fmt.Sprintf("%s: %s %s", u.account, u.verb, u.resource))
			}
		}
		if slices.Sort(unused); len(unused) > 0 {
			return fmt.Errorf("granted and not used:\n%s", strings.Join(unused, "\n"))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for u := range rare {
		if !all[u] {
			t.Errorf("%+v is rare and not granted", u)
		}
	}
}

// live creates pods, changes the labels of one and deletes it, and creates objects that agents and the cluster role answer with requests.
func live(t *testing.T, c *kube.Cluster) {
	t.Helper()
	// The remaining pod shows that identities are in use.
	for _, p := range []kube.Pod{{Name: "stays", Node: "node-2", Labels: map[string]string{"stays": "yes"}}, {Name: "client", Node: "node-1"}} {
		if err := c.RunPod(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.MergePatch(t.Context(), "/api/v1/namespaces/default/pods/client", `{"metadata": {"labels": {"a": "b"}}}`); err != nil {
		t.Fatal(err)
	}
	err := c.WaitFor(t.Context(), "the CiliumEndpoint to follow the label", func() error {
		var o struct {
			Status struct{ Identity struct{ Labels []string } }
		}
		if err := c.GetObject(t.Context(), endpoints+"/client", &o); err != nil {
			return err
		}
		if !slices.Contains(o.Status.Identity.Labels, "k8s:a=b") {
			return fmt.Errorf("labels %q", o.Status.Identity.Labels)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.DeletePod(t.Context(), "client"); err != nil {
		t.Fatal(err)
	}
	// The cluster role removes objects of deleted pods and nodes, and validates policies.
	const namespaced, clusterwide = "/apis/cilium.io/v2/namespaces/default/ciliumnetworkpolicies", "/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies"
	for _, o := range []struct{ path, text string }{
		{endpoints, `{"apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint", "metadata": {"name": "orphan"}}`},
		{"/apis/cilium.io/v2/ciliumnodes", `{"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "spec": {},
			"metadata": {"name": "gone", "labels": {"app.kubernetes.io/managed-by": "waggle"}}}`},
		// Policies with parts that are not enforced.
		{namespaced, `{"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": {"name": "names"},
			"spec": {"endpointSelector": {}, "egress": [{"toFQDNs": [{"matchName": "example.com"}]}]}}`},
		{clusterwide, `{"apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "nodes"},
			"spec": {"nodeSelector": {}}}`},
	} {
		if _, err := c.Request(t.Context(), "POST", o.path, []byte(o.text)); err != nil {
			t.Fatal(err)
		}
	}
	// An agent reports policies that exceed a limit of its node together.
	for i, requirements := range kube.TooManyRequirements() {
		text := fmt.Sprintf(`{"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": {"name": "large-%d"},
			"spec": {"endpointSelector": {}, "ingress": [{"fromEndpoints": [{}], "fromRequires": %s}]}}`, i, requirements)
		if _, err := c.Request(t.Context(), "POST", namespaced, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
}
