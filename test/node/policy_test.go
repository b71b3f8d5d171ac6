package node_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
)

// serverPolicy returns a policy that isolates the pod server on ingress, with one rule.
func serverPolicy(rule string) string {
	return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: default, name: server}\n" +
		"spec:\n  podSelector: {matchLabels: {app: server}}\n  policyTypes: [Ingress]\n  ingress: [" + rule + "]\n"
}

// A policy that exists before its pods is enforced from their first packet; a new, changed or deleted policy applies to running pods. The policy does not limit
// egress of the pod.
func TestPrivilegedPolicy_Lifecycle(t *testing.T) {
	t.Parallel()
	node := newNode(t, nodekit.Options{})
	manifest := filepath.Join(node.ManifestsDir(), "server-policy.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pods := "apiVersion: v1\nkind: Namespace\nmetadata: {name: default}\n"
	for _, name := range []string{"server", "client"} {
		pods += fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {namespace: default, name: %s, labels: {app: %s}}\n"+
			"spec: {containers: [{name: c}]}\n", name, name)
	}
	if err := os.WriteFile(filepath.Join(node.ManifestsDir(), "pods.yaml"), []byte(pods), 0o600); err != nil {
		t.Fatal(err)
	}
	write(serverPolicy(""))
	if err := node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
	server, client := addPod(t, node, "server"), addPod(t, node, "client")
	passes := func(ipv6 bool) error { return nodekit.PingBriefly(client, server.Addr(ipv6), 56) }

	for _, family := range families { // no retries: ADD has returned
		if passes(family.ipv6) == nil {
			t.Errorf("%s: a packet passes that the policy denies", family.name)
		}
		if err := nodekit.Ping(server, client.Addr(family.ipv6), 56); err != nil {
			t.Errorf("%s: what the server begins, and its answer: %v", family.name, err)
		}
		if err := nodekit.Ping(node.Host(), server.Addr(family.ipv6), 56); err != nil {
			t.Errorf("%s: the local host reaches its pods: %v", family.name, err)
		}
	}
	for _, step := range []struct {
		what, policy string
		open         bool
	}{
		{"the client is let in", serverPolicy("{from: [{podSelector: {matchLabels: {app: client}}}]}"), true},
		{"another pod is allowed", serverPolicy("{from: [{podSelector: {matchLabels: {app: other}}}]}"), false},
		{"all pods are allowed", serverPolicy("{}"), true},
		{"no pod is allowed, again", serverPolicy(""), false},
	} {
		write(step.policy)
		for _, family := range families {
			eventually(t, func() error {
				if err := passes(family.ipv6); (err == nil) != step.open {
					return fmt.Errorf("%s %s: %w", family.name, step.what, errors.Join(errors.New("not in force"), err))
				}
				return nil
			})
		}
	}
	if err := os.Remove(manifest); err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		eventually(t, func() error { return passes(family.ipv6) })
	}
}
