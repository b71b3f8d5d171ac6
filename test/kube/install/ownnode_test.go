package install

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// write is a write request of an agent.
type write struct{ method, path, kind, body string }

// send sends the request with a token.
func (w write) send(ctx context.Context, c *kube.Cluster, token string) error {
	request, err := http.NewRequestWithContext(ctx, w.method, c.URL+w.path, strings.NewReader(w.body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/"+w.kind)
	client := &http.Client{Transport: &http.Transport{DialContext: c.Dial, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s", response.Status, answer)
	}
	return err
}

const (
	merge     = "merge-patch+json"
	strategic = "strategic-merge-patch+json"
	endpoints = "/apis/cilium.io/v2/namespaces/default/ciliumendpoints"
)

func endpointOf(name, node string) string {
	return fmt.Sprintf(`{"apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint", "metadata": {"name": %q, "labels": {"waggle.io/node": %q}}}`, name, node)
}

// writes returns the requests that an agent sends for its node.
func writes(node string) map[string]write {
	return map[string]write{
		"annotation": {"PATCH", "/api/v1/nodes/" + node + "/status", merge, `{"metadata": {"annotations": {"network.cilium.io/ipv4-cilium-host": "10.0.0.1"}}}`},
		"condition": {"PATCH", "/api/v1/nodes/" + node + "/status", strategic,
			`{"status": {"conditions": [{"type": "NetworkUnavailable", "status": "False", "reason": "WaggleIsUp"}]}}`},
		"condition of paths": {"PATCH", "/api/v1/nodes/" + node + "/status", strategic,
			`{"status": {"conditions": [{"type": "WaggleNetworkPathsDegraded", "status": "True", "reason": "PathsFailed"}]}}`},
		"create the CiliumNode": {"POST", "/apis/cilium.io/v2/ciliumnodes", "json", fmt.Sprintf(`{"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": %q}, "spec": {}}`, node)},
		"change the CiliumNode": {"PATCH", "/apis/cilium.io/v2/ciliumnodes/" + node, merge, `{"spec": {"bootid": "2"}}`},
		"create an endpoint":    {"POST", endpoints, "json", endpointOf("pod-"+node, node)},
		"change an endpoint":    {"PATCH", endpoints + "/pod-" + node, merge, `{"status": {"id": 7}}`},
		"delete an endpoint":    {"DELETE", endpoints + "/pod-" + node, "json", ""},
	}
}

// order lists the requests such that each follows its prerequisites.
var order = []string{"annotation", "condition", "condition of paths", "create the CiliumNode", "change the CiliumNode", "create an endpoint", "change an endpoint", "delete an endpoint"}

func ownNode(t *testing.T, c *kube.Cluster) {
	const own, other = "node-1", "node-2"
	token, err := c.Token(t.Context(), kube.AgentAccount, own)
	if err != nil {
		t.Fatal(err)
	}
	all := writes(own)
	for _, name := range order[:len(order)-1] {
		allowed(t.Context(), t, c, token, all[name])
	}
	allowed(t.Context(), t, c, token, withoutTaint(t, c, own))
	const whose, noNode = "may write only what belongs to its own node, node-1", "names no node"
	requireDenied(t, c, token, withoutTaint(t, c, other), whose)
	loose := looseToken(t, c)
	for _, name := range []string{"annotation", "condition", "condition of paths", "create the CiliumNode", "create an endpoint"} {
		requireDenied(t, c, token, writes(other)[name], whose)
		requireDenied(t, c, loose, writes(other)[name], noNode)
	}
	requireDenied(t, c, loose, all["change the CiliumNode"], noNode)

	// Objects of the other node, created by that node's agent.
	otherToken, err := c.Token(t.Context(), kube.AgentAccount, other)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"create the CiliumNode", "create an endpoint"} {
		allowed(t.Context(), t, c, otherToken, writes(other)[name])
	}
	for _, name := range []string{"change the CiliumNode", "change an endpoint", "delete an endpoint"} {
		requireDenied(t, c, token, writes(other)[name], whose)
	}
	take := write{"PATCH", endpoints + "/pod-" + other, merge, `{"metadata": {"labels": {"waggle.io/node": "node-1"}}}`}
	requireDenied(t, c, token, take, whose)
	give := write{"PATCH", endpoints + "/pod-" + own, merge, `{"metadata": {"labels": {"waggle.io/node": "node-2"}}}`}
	requireDenied(t, c, token, give, whose)
	partsOfOwnNode(t, c, token, own)
	rangesOfOwnNode(t, c, token, own)
	addressesOfOwnNode(t, c, token, own)
	eventsOfOwnNode(t, c, token, loose, own)
	allowed(t.Context(), t, c, token, all["delete an endpoint"])

	// The policy does not apply to other accounts.
	if err := c.MergePatch(t.Context(), "/api/v1/nodes/"+other, `{"metadata": {"labels": {"a": "b"}}}`); err != nil {
		t.Error(err)
	}
	requireDenied(t, c, token, write{"DELETE", "/api/v1/nodes/" + own, "json", ""}, "cannot delete resource")
	requireDenied(t, c, token, write{"DELETE", "/apis/cilium.io/v2/ciliumnodes/" + own, "json", ""}, "cannot delete resource")
	requireDenied(t, c, token, write{"POST", "/apis/cilium.io/v2alpha1/ciliumendpointslices", "json",
		`{"apiVersion": "cilium.io/v2alpha1", "kind": "CiliumEndpointSlice", "metadata": {"name": "ces-x"}, "namespace": "default", "endpoints": []}`}, "cannot create resource")
}

// partsOfOwnNode checks that an agent can change only certain parts of its own Node.
func partsOfOwnNode(t *testing.T, c *kube.Cluster, token, node string) {
	path := "/api/v1/nodes/" + node
	for want, writes := range map[string][]write{
		"labels, finalizers and owners": {{"PATCH", path, merge, `{"metadata": {"labels": {"a": "b"}}}`},
			{"PATCH", path + "/status", merge, `{"metadata": {"labels": {"a": "b"}}}`}, {"PATCH", path, merge, `{"metadata": {"finalizers": ["a/b"]}}`}},
		"may not change the spec": {{"PATCH", path, merge, `{"spec": {"unschedulable": true}}`}},
		"take the taint node.cilium.io/agent-not-ready away": {{"PATCH", path, merge, `{"spec": {"taints": []}}`},
			{"PATCH", path, merge, `{"spec": {"taints": [{"key": "other", "value": "true", "effect": "NoSchedule"}, {"key": "new", "effect": "NoSchedule"}]}}`}},
		"only the conditions NetworkUnavailable and WaggleNetworkPathsDegraded": {{"PATCH", path + "/status", strategic, `{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}`},
			{"PATCH", path + "/status", merge, `{"status": {"capacity": {"cpu": "1000"}}}`}},
	} {
		for _, w := range writes {
			requireDenied(t, c, token, w, want)
		}
	}
}

// rangesOfOwnNode checks that an agent cannot set the pod ranges of its node. The cluster role sets a range, and an administrator later changes it.
func rangesOfOwnNode(t *testing.T, c *kube.Cluster, token, node string) {
	path := "/apis/cilium.io/v2/ciliumnodes/" + node
	ranges := func(list string) write {
		return write{"PATCH", path, merge, `{"spec": {"ipam": {"podCIDRs": ` + list + `}}}`}
	}
	noted := func(list string) write {
		return write{"PATCH", path, merge, `{"metadata": {"annotations": {"waggle.io/pod-ranges": ` + list + `}}}`}
	}
	cluster, err := c.Token(t.Context(), "kube-system/waggle-cluster", node)
	if err != nil {
		t.Fatal(err)
	}
	const never, onlyHad = "may not write pod CIDRs into its CiliumNode", "only pod CIDRs that its CiliumNode has or had"
	requireDenied(t, c, token, ranges(`["10.0.0.0/8"]`), never)
	requireDenied(t, c, token, noted(`"10.0.0.0/8"`), onlyHad)
	allowed(t.Context(), t, c, cluster, ranges(`["10.244.1.0/24", "fd00::100/120"]`))
	allowed(t.Context(), t, c, token, writes(node)["change the CiliumNode"])
	for _, list := range []string{`["10.244.1.0/24", "fd00::100/120", "192.0.2.0/24"]`, `["10.244.0.0/16"]`, `["10.244.1.0/25"]`} {
		requireDenied(t, c, token, ranges(list), never)
	}
	requireDenied(t, c, token, noted(`"10.244.1.0/24,10.244.2.0/24"`), onlyHad)
	allowed(t.Context(), t, c, token, noted(`"10.244.1.0/24,fd00::100/120"`))
	allowed(t.Context(), t, c, cluster, ranges(`["10.244.7.0/24", "fd00::100/120"]`))
	requireDenied(t, c, token, ranges(`["10.244.1.0/24", "fd00::100/120"]`), never)
	allowed(t.Context(), t, c, token, noted(`"10.244.1.0/24,10.244.7.0/24"`))
	allowed(t.Context(), t, c, token, noted(`"10.244.7.0/24"`))
	requireDenied(t, c, token, noted(`"10.244.1.0/24,10.244.7.0/24"`), onlyHad)
	allowed(t.Context(), t, c, token, ranges(`["10.244.7.0/24"]`))
	allowed(t.Context(), t, c, token, ranges("null"))
	requireDenied(t, c, token, write{"POST", "/apis/cilium.io/v2/ciliumnodes?dryRun=All", "json",
		fmt.Sprintf(`{"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": %q}, "spec": {"ipam": {"podCIDRs": ["10.0.0.0/8"]}}}`, node)}, never)
}

// eventsOfOwnNode checks that an agent can create only Events about policies that name its node.
func eventsOfOwnNode(t *testing.T, c *kube.Cluster, token, loose, node string) {
	event := func(host, reason, kind string) write {
		return write{"POST", "/api/v1/namespaces/default/events", "json", fmt.Sprintf(`{"apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "x."},
			"involvedObject": {"kind": %q, "namespace": "default", "name": "x"}, "reason": %q, "type": "Warning", "source": {"component": "waggle", "host": %q}}`, kind, reason, host)}
	}
	allowed(t.Context(), t, c, token, event(node, "PolicyOverflow", "NetworkPolicy"))
	allowed(t.Context(), t, c, token, event(node, "PolicyOverflow", "CiliumNetworkPolicy"))
	const own, policies = "only Events that name its own node", "only Events about policies"
	requireDenied(t, c, token, event("node-2", "PolicyOverflow", "NetworkPolicy"), own)
	requireDenied(t, c, token, event("", "PolicyOverflow", "NetworkPolicy"), own)
	requireDenied(t, c, loose, event("", "PolicyOverflow", "NetworkPolicy"), own)
	requireDenied(t, c, token, event(node, "Killing", "NetworkPolicy"), policies)
	requireDenied(t, c, token, event(node, "PolicyOverflow", "Pod"), policies)
}

// addressesOfOwnNode checks that an agent can add only router and health addresses in the pod ranges of its CiliumNode, and can keep the present addresses.
func addressesOfOwnNode(t *testing.T, c *kube.Cluster, token, node string) {
	path := "/apis/cilium.io/v2/ciliumnodes/" + node
	patch := func(spec string) write { return write{"PATCH", path, merge, `{"spec": {` + spec + `}}`} }
	router := func(addr string) write {
		return patch(`"addresses": [{"type": "InternalIP", "ip": "192.0.2.7"}, {"type": "CiliumInternalIP", "ip": "` + addr + `"}]`)
	}
	cluster, err := c.Token(t.Context(), "kube-system/waggle-cluster", node)
	if err != nil {
		t.Fatal(err)
	}
	const foreign = "router and health addresses of a CiliumNode must lie in its pod CIDRs"
	requireDenied(t, c, token, router("10.244.7.1"), foreign)
	allowed(t.Context(), t, c, cluster, patch(`"ipam": {"podCIDRs": ["10.244.7.0/24", "fd00::100/120"]}`))
	for _, addr := range []string{"10.244.8.1", "fd00::200"} {
		requireDenied(t, c, token, router(addr), foreign)
	}
	requireDenied(t, c, token, patch(`"health": {"ipv4": "10.244.8.2"}`), foreign)
	requireDenied(t, c, token, patch(`"health": {"ipv4": "10.244.7.2", "ipv6": "fd00::2"}`), foreign)
	allowed(t.Context(), t, c, token, router("10.244.7.1"))
	allowed(t.Context(), t, c, token, patch(`"health": {"ipv4": "10.244.7.2", "ipv6": "fd00::102"}`))
	allowed(t.Context(), t, c, cluster, patch(`"ipam": {"podCIDRs": ["10.244.9.0/24", "fd00::100/120"]}`))
	allowed(t.Context(), t, c, token, patch(`"bootid": "3"`))
	allowed(t.Context(), t, c, token, router("10.244.9.1"))
	requireDenied(t, c, token, router("10.244.7.1"), foreign)
	requireDenied(t, c, token, write{"POST", "/apis/cilium.io/v2/ciliumnodes?dryRun=All", "json",
		fmt.Sprintf(`{"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": {"name": %q}, "spec": {"health": {"ipv4": "10.0.0.1"}}}`, node)}, foreign)
}

// withoutTaint removes the agent's taint from a node and keeps the others, as the agent does.
func withoutTaint(t *testing.T, c *kube.Cluster, node string) write {
	t.Helper()
	var object struct {
		Spec struct{ Taints []struct{ Key string } }
	}
	if err := c.GetObject(t.Context(), "/api/v1/nodes/"+node, &object); err != nil {
		t.Fatal(err)
	}
	for i, taint := range object.Spec.Taints {
		if taint.Key == "node.cilium.io/agent-not-ready" {
			return write{"PATCH", "/api/v1/nodes/" + node, "json-patch+json",
				fmt.Sprintf(`[{"op": "test", "path": "/spec/taints/%d/key", "value": %q}, {"op": "remove", "path": "/spec/taints/%d"}]`, i, taint.Key, i)}
		}
	}
	t.Fatalf("%s has no such taint: %+v", node, object.Spec.Taints)
	return write{}
}

// looseToken returns a token of the agents' account that is bound to no pod and no node.
func looseToken(t *testing.T, c *kube.Cluster) string {
	t.Helper()
	body, err := c.Request(t.Context(), "POST", "/api/v1/namespaces/kube-system/serviceaccounts/waggle/token",
		[]byte(`{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}`))
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Status struct{ Token string } }
	if err := json.Unmarshal(body, &answer); err != nil {
		t.Fatal(err)
	}
	return answer.Status.Token
}
