package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/policyentries"
	"github.com/waggle-net/waggle/test/nodekit"
)

// podManifests returns pods in namespace "default", each with labels for its name and its role.
func podManifests(role string, names ...string) string {
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "---\n{apiVersion: v1, kind: Pod, metadata: {namespace: default, name: %s, labels: {app: %s, role: %s}}, spec: {containers: [{name: c}]}}\n",
			name, name, role)
	}
	return b.String()
}

// policyManifest returns a policy that isolates the pods with the labels in one direction and allows the traffic in the rules.
func policyManifest(name, labels, direction string, rules ...string) string {
	return fmt.Sprintf("---\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: default, name: %s}, "+
		"spec: {podSelector: {matchLabels: {%s}}, policyTypes: [%s], %s: [%s]}}\n",
		name, labels, direction, strings.ToLower(direction), strings.Join(rules, ", "))
}

// inForce waits until the kernel has policies with at least the given number of entries for both directions of a pod's endpoint.
func inForce(ctx context.Context, node *nodekit.Node, pod *nodekit.Pod, entries int) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	agent := agentclient.New(filepath.Join(node.StateDir(), "waggle.sock"))
	for {
		err := holds(ctx, agent, pod, entries)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func holds(ctx context.Context, agent *agentclient.Client, pod *nodekit.Pod, entries int) error {
	facts, err := agentclient.Rows[*bpfendpoints.Facts](ctx, agent, "endpoint-facts")
	if err != nil {
		return err
	}
	compiled, err := agentclient.Rows[*policyentries.Policy](ctx, agent, "policy-entries")
	if err != nil {
		return err
	}
	sizes := map[uint32]int{}
	for _, c := range compiled {
		sizes[c.ID] = c.Entries + c.Ranges
	}
	for _, f := range facts {
		if f.IPv4 != pod.Addr(false) {
			continue
		}
		if size := sizes[f.Ingress.Enforced.ID] + sizes[f.Egress.Enforced.ID]; size < entries {
			return fmt.Errorf("the policies of pod %s have %d entries, want %d", pod.Name, size, entries)
		}
		return nil
	}
	return fmt.Errorf("pod %s has no row in endpoint_facts", pod.Name)
}
