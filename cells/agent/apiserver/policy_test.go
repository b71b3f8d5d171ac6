package apiserver

import (
	"strings"
	"testing"
)

func TestEndpoint_ReportsPolicy(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	body := read(t, f.request("GET", "/v1/endpoint/7", ""))
	want := `"realized":{"allowed-ingress-identities":[300],"id":5,"l4":{"ingress":[{"derived-from-rules":[["NetworkPolicy shop/cart spec.ingress[0]"]],` +
		`"rule":"80/TCP"}]},"policy-enabled":"ingress","policy-revision":3}`
	if !strings.Contains(body, want) {
		t.Errorf("%s is missing in %s", want, body)
	}
}

func TestExplain_NamesTheRuleAndTheNearestMiss(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for port, want := range map[string]string{
		"80/TCP": `"summary":"allowed by this node: ingress of the receiver: NetworkPolicy shop/cart spec.ingress[0] allows it; the sender is not an endpoint of this node"`,
		"81/TCP": `"summary":"denied in ingress of the receiver: isolated by NetworkPolicy shop/cart spec, and no rule allows it; ` +
			`NetworkPolicy shop/cart spec.ingress[0] nearly allows it: it is for 80/TCP, not 81"`,
	} {
		body := read(t, f.request("GET", "/v1/policy/explain?from=10.0.1.8&to=shop/cart&port="+port, ""))
		for _, want := range []string{want, `"here":true,"isolated":true`, `"kernel":{"message":"read map endpoint_facts: maps are not open"}`,
			`"from":{"address":"10.0.1.8","identity":300,"labels":["k8s:app=web"],"pod":"shop/web"}`, `"conntrack-error":"read map ct_est4: maps are not open"`,
			`"egress":{"message":"not an endpoint of this node:`} {
			if !strings.Contains(body, want) {
				t.Errorf("%s: %s is missing in %s", port, want, body)
			}
		}
	}
}

// Policies are evaluated for the backends of a service and not for its address.
func TestExplain_ThroughAService(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	body := read(t, f.request("GET", "/v1/policy/explain?from=10.0.1.8&to=10.96.0.1&port=80/TCP", ""))
	for _, want := range []string{`"summary":"denied towards 1 of 2 backends of service shop/web at 10.96.0.1:80/TCP: 10.0.1.7 8080/TCP: denied in ingress`,
		`"service":{"backends":2,"frontend":"10.96.0.1:80/TCP","id":1,"name":"shop/web","scope":"internal","type":"ClusterIP"}`,
		`"to":{"address":"10.0.1.7","endpoint":7,`, `"to":{"address":"10.0.2.7"}`, `"verdict":"denied"`} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is missing in %s", want, body)
		}
	}
}

func TestWhatIf_NamesNewlyDeniedFlow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ep := pod()
	ep.Labels = map[string]string{"k8s:app": "cart", "k8s:io.kubernetes.pod.namespace": "shop"}
	f.manager.insert(ep)
	deny := `{"manifests":"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: cart, namespace: shop}\nspec: {podSelector: {}}"}`
	body := read(t, f.request("POST", "/v1/policy/what-if", deny))
	for _, want := range []string{`"denied":[{"count":3,"direction":"ingress","from":{"address":"10.0.1.8"`, `"port":"80/TCP"`,
		`"replaced":["NetworkPolicy shop/cart"]`, `"flows":1`} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is missing in %s", want, body)
		}
	}
	if body := read(t, f.request("POST", "/v1/policy/what-if", `{"delete":["cart"]}`)); !strings.Contains(body, `"deleted":["NetworkPolicy shop/cart"]`) {
		t.Error(body)
	}
}
