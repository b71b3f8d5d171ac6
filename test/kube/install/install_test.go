// Package install tests the output of "waggle install" against a real API server.
package install

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

func TestMain(m *testing.M) { kube.Main(m) }

// TestPrivilegedInstall uses one cluster of two nodes, first without agents and then with agents.
func TestPrivilegedInstall(t *testing.T) {
	c := kube.Start(t, kube.Options{Nodes: 2, NodeOptions: kube.NodeOptions{Taints: []string{"node.cilium.io/agent-not-ready=true:NoSchedule", "other=true:NoSchedule"}}})
	var manifests string
	t.Run("RealAPIServer", func(t *testing.T) { manifests = realAPIServer(t, c) })
	if t.Failed() {
		return // the next subtest needs a clean cluster
	}
	removed(t, c, manifests)
	t.Run("VerbsAreExact", func(t *testing.T) { verbsAreExact(t, c) })
}

// removed restores the initial state of the cluster: without Waggle, and with nodes without conditions and annotations of agents.
func removed(t *testing.T, c *kube.Cluster, manifests string) {
	t.Helper()
	if _, err := c.KubectlInput(t.Context(), manifests, "delete", "--timeout=3m", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes {
		for path, patch := range map[string]string{
			"":        `{"metadata": {"annotations": {"network.cilium.io/ipv4-cilium-host": null}}, "spec": {"taints": [{"key": "node.cilium.io/agent-not-ready", "value": "true", "effect": "NoSchedule"}]}}`,
			"/status": `{"status": {"conditions": [{"type": "NetworkUnavailable", "$patch": "delete"}, {"type": "WaggleNetworkPathsDegraded", "$patch": "delete"}]}}`,
		} {
			if err := (write{"PATCH", "/api/v1/nodes/" + n.Name + path, strategic, patch}).send(t.Context(), c, kube.AdminToken); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// realAPIServer runs all checks of the printed manifests. No agent runs, because nodes have no image.
func realAPIServer(t *testing.T, c *kube.Cluster) (manifests string) {
	manifests, err := c.Nodes[0].Waggle(t.Context(), "install", "--k8s-api-server", c.URL, "--set", "ipam=cluster-pool")
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.KubectlInput(t.Context(), manifests, "apply", "--validate=strict", "-f", "-")
	if err != nil || strings.Contains(out, "Warning") {
		t.Fatalf("apply: %v\n%s", err, out)
	}
	t.Run("a second apply changes nothing", func(t *testing.T) {
		out, err := c.KubectlInput(t.Context(), manifests, "apply", "-f", "-")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out) {
			if !strings.HasSuffix(line, "unchanged\n") {
				t.Error(line)
			}
		}
	})
	t.Run("the definitions are established", func(t *testing.T) { established(t, c) })
	t.Run("the policies have no warnings", func(t *testing.T) { withoutWarnings(t, c) })
	t.Run("objects are checked", func(t *testing.T) { checked(t, c) })
	t.Run("a token writes objects of its node", func(t *testing.T) { ownNode(t, c) })
	t.Run("the cluster's account has the printed permissions", func(t *testing.T) { clusterAccount(t, c) })
	return manifests
}

// clusterAccount tries requests just outside each permission of the cluster role's account.
func clusterAccount(t *testing.T, c *kube.Cluster) {
	token, err := c.Token(t.Context(), "kube-system/waggle-cluster", "node-1")
	if err != nil {
		t.Fatal(err)
	}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/"
	for _, w := range []write{
		writes("node-1")["annotation"], writes("node-1")["create the CiliumNode"], writes("node-1")["create an endpoint"],
		{"PATCH", "/api/v1/nodes/node-1", merge, `{"spec": {"unschedulable": true}}`},
		{"DELETE", "/api/v1/nodes/node-1", "json", ""},
		{"PATCH", endpoints + "/any", merge, `{"status": {"id": 7}}`},
		{"DELETE", "/api/v1/namespaces/default/pods/any", "json", ""},
		{"GET", "/api/v1/namespaces/kube-system/secrets", "json", ""},
		{"GET", "/api/v1/pods?watch=true", "json", ""},
		{"POST", "/apis/cilium.io/v2/ciliumidentities", "json", `{"apiVersion": "cilium.io/v2", "kind": "CiliumIdentity", "metadata": {"name": "257"}, "security-labels": {}}`},
		{"PATCH", "/apis/cilium.io/v2/namespaces/default/ciliumnetworkpolicies/any", merge, `{"spec": null}`},
		{"PATCH", "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/any", merge, `{"spec": null}`},
		{"GET", "/api/v1/events", "json", ""},
		{"POST", leases + "default/leases", "json", `{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "waggle-cluster"}}`},
		{"PUT", leases + "kube-system/leases/other", "json", `{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "other"}}`},
	} {
		requireDenied(t, c, token, w, "cannot")
	}
}

func established(t *testing.T, c *kube.Cluster) {
	if out, err := c.Kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=3m", "crd", "-l", "app.kubernetes.io/managed-by=waggle"); err != nil ||
		strings.Count(out, "condition met") != 7 {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, want := range map[string]string{"cn": "ciliumnodes", "ciliumep": "ciliumendpoints", "ces": "ciliumendpointslices", "ciliumid": "ciliumidentities",
		"cnp": "ciliumnetworkpolicies", "ccnp": "ciliumclusterwidenetworkpolicies", "ccg": "ciliumcidrgroups"} {
		version := "v2"
		if name == "ces" {
			version = "v2alpha1"
		}
		var list struct {
			Resources []struct {
				Name       string
				ShortNames []string
			}
		}
		if err := c.GetObject(t.Context(), "/apis/cilium.io/"+version, &list); err != nil {
			t.Fatal(err)
		}
		found := false
		for _, r := range list.Resources {
			found = found || r.Name == want && strings.Contains(" "+strings.Join(r.ShortNames, " ")+" ", " "+name+" ")
		}
		if !found {
			t.Errorf("%s is not short for %s", name, want)
		}
	}
}

// withoutWarnings waits until the controller manager has type-checked the expressions.
func withoutWarnings(t *testing.T, c *kube.Cluster) {
	err := c.WaitFor(t.Context(), "expressions to be checked", func() error {
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Status   struct {
					ObservedGeneration int
					TypeChecking       struct{ ExpressionWarnings []any }
				}
			}
		}
		if err := c.GetObject(t.Context(), "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", &list); err != nil {
			return err
		}
		if len(list.Items) != 5 {
			return fmt.Errorf("%d policies", len(list.Items))
		}
		for _, p := range list.Items {
			if p.Status.ObservedGeneration == 0 {
				return fmt.Errorf("%s is not checked yet", p.Metadata.Name)
			}
			if w := p.Status.TypeChecking.ExpressionWarnings; len(w) > 0 {
				t.Errorf("%s: %v", p.Metadata.Name, w)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// checked validates objects against the schemas as the API server interprets them.
func checked(t *testing.T, c *kube.Cluster) {
	for name, o := range map[string]struct{ path, object, want string }{
		"node": {"ciliumnodes", `{"kind": "CiliumNode", "metadata": {"name": "x"}, "spec": {"bootid": "1", "addresses": [{"type": "InternalIP", "ip": "192.0.2.1"}],
			"ipam": {"podCIDRs": ["10.0.0.0/24", "fd00::/64"]}, "eni": {"any": [1]}}, "status": {"ipam": {}}}`, ""},
		"node with a bad CIDR": {"ciliumnodes", `{"kind": "CiliumNode", "metadata": {"name": "x"}, "spec": {"ipam": {"podCIDRs": ["10.0.0.0"]}}}`, "spec.ipam.podCIDRs[0]"},
		"node with a misspelt field": {"ciliumnodes", `{"kind": "CiliumNode", "metadata": {"name": "x"}, "spec": {"addreses": []}}`,
			`unknown field \"spec.addreses\"`},
		"endpoint": {"namespaces/default/ciliumendpoints", `{"kind": "CiliumEndpoint", "metadata": {"name": "x"}, "status": {"id": 7, "encryption": {},
			"identity": {"id": 257, "labels": ["k8s:a=b"]}, "networking": {"addressing": [{"ipv4": "10.0.0.7"}], "node": "192.0.2.1"}, "state": "ready",
			"named-ports": [{"name": "http", "port": 80, "protocol": "TCP"}], "policy": {"ingress": {"state": "enforcing"}}}}`, ""},
		"slice": {"ciliumendpointslices", `{"kind": "CiliumEndpointSlice", "metadata": {"name": "x"}, "namespace": "default", "endpoints": [{"name": "a", "id": 257, "pod-uid": "u",
			"networking": {"addressing": [{"ipv4": "10.0.0.7"}], "node": "192.0.2.1"}, "encryption": {"key": 0}, "named-ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
			"service-account": "default", "waggle": {"uid": "u", "created": 1700000000, "node": "node-1"}}]}`, ""},
		"slice of no list":        {"ciliumendpointslices", `{"kind": "CiliumEndpointSlice", "metadata": {"name": "x"}}`, "endpoints"},
		"slice without owner":     {"ciliumendpointslices", `{"kind": "CiliumEndpointSlice", "metadata": {"name": "x"}, "endpoints": [{"waggle": {}}]}`, "endpoints[0].waggle.uid"},
		"endpoint in no state":    {"namespaces/default/ciliumendpoints", `{"kind": "CiliumEndpoint", "metadata": {"name": "x"}, "status": {"state": "happy"}}`, "status.state"},
		"identity":                {"ciliumidentities", `{"kind": "CiliumIdentity", "metadata": {"name": "257"}, "security-labels": {"k8s:app": "cart"}}`, ""},
		"identity without number": {"ciliumidentities", `{"kind": "CiliumIdentity", "metadata": {"name": "a"}, "security-labels": {}}`, "metadata.name"},
		"policy": {"namespaces/default/ciliumnetworkpolicies", `{"kind": "CiliumNetworkPolicy", "metadata": {"name": "x"}, "spec": {"endpointSelector": {},
			"ingress": [{"fromEndpoints": [{"matchLabels": {"k8s:app": "a"}}], "toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}], "rules": {"http": [{"method": "GET"}]}}]}],
			"ingressDeny": [{"fromCIDR": ["192.0.2.1"], "icmps": [{"fields": [{"type": 8}, {"type": "EchoRequest"}]}]}]}}`, ""},
		"policy without a rule":  {"namespaces/default/ciliumnetworkpolicies", `{"kind": "CiliumNetworkPolicy", "metadata": {"name": "x"}}`, "a policy needs spec or specs"},
		"policy with a bad CIDR": {"namespaces/default/ciliumnetworkpolicies", `{"kind": "CiliumNetworkPolicy", "metadata": {"name": "x"}, "spec": {"endpointSelector": {}, "egress": [{"toCIDR": ["x"]}]}}`, "toCIDR"},
		"group of CIDRs":         {"ciliumcidrgroups", `{"kind": "CiliumCIDRGroup", "metadata": {"name": "x"}, "spec": {"externalCIDRs": ["10.0.0.0/8", "192.0.2.1", "2001:db8::/32"]}}`, ""},
		"group of names":         {"ciliumcidrgroups", `{"kind": "CiliumCIDRGroup", "metadata": {"name": "x"}, "spec": {"externalCIDRs": ["example.org"]}}`, "spec.externalCIDRs[0]"},
		"policy with an unreadable subject": {"ciliumclusterwidenetworkpolicies", `{"kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "x"}, "spec": {"endpointSelector":
			{"matchExpressions": [{"key": "app", "operator": "In"}]}}}`, "spec.endpointSelector.matchExpressions[0]"},
		"policy of a subject with a key of nothing": {"ciliumclusterwidenetworkpolicies", `{"kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "x"}, "specs": [{"endpointSelector":
			{"matchExpressions": [{"key": "k8s:", "operator": "Exists"}]}}]}`, "specs[0].endpointSelector.matchExpressions[0].key"},
		"policy of a subject": {"ciliumclusterwidenetworkpolicies", `{"kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "x"}, "spec": {"endpointSelector":
			{"matchExpressions": [{"key": "k8s:app", "operator": "In", "values": ["a"]}, {"key": "b", "operator": "DoesNotExist", "values": []}]}}}`, ""},
		"policy of nodes":          {"ciliumclusterwidenetworkpolicies", `{"kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "x"}, "spec": {"nodeSelector": {}}}`, ""},
		"policy of nodes and pods": {"ciliumclusterwidenetworkpolicies", `{"kind": "CiliumClusterwideNetworkPolicy", "metadata": {"name": "x"}, "specs": [{"nodeSelector": {}, "endpointSelector": {}}]}`, "specs[0]"},
		"policy of other nodes":    {"namespaces/default/ciliumnetworkpolicies", `{"kind": "CiliumNetworkPolicy", "metadata": {"name": "x"}, "spec": {"nodeSelector": {}}}`, "spec.endpointSelector"},
	} {
		var object map[string]any
		if err := json.Unmarshal([]byte(o.object), &object); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		version := "cilium.io/v2"
		if object["kind"] == "CiliumEndpointSlice" {
			version = "cilium.io/v2alpha1"
		}
		object["apiVersion"] = version
		err := c.Create(t.Context(), "/apis/"+version+"/"+o.path+"?dryRun=All&fieldValidation=Strict", object)
		if o.want == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if o.want != "" && (err == nil || !strings.Contains(err.Error(), o.want)) {
			t.Errorf("%s: got %v, want %s", name, err, o.want)
		}
	}
}

func allowed(ctx context.Context, t *testing.T, c *kube.Cluster, token string, w write) {
	t.Helper()
	if err := w.send(ctx, c, token); err != nil {
		t.Errorf("%s: %v", w.path, err)
	}
}

func requireDenied(t *testing.T, c *kube.Cluster, token string, w write, want string) {
	t.Helper()
	if err := w.send(t.Context(), c, token); err == nil || !strings.Contains(err.Error(), "403") || !strings.Contains(err.Error(), want) {
		t.Errorf("%s %s %s: got %v, want 403 with %q", w.method, w.path, w.body, err, want)
	}
}
