package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/nodekit"
)

// relabel measures the time until packets follow changed labels that a policy selects peers by: labels of a pod and of its namespace.
func (b *bench) relabel(ctx context.Context) error {
	node, err := b.startNode(ctx, nodekit.Options{})
	if err != nil {
		return err
	}
	defer node.Close()
	namespace := func(team string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: default, labels: {team: %s}}}\n", team)
	}
	rule := func(selector string) string {
		return policyManifest("judged", "role: judged", "Ingress", "{from: [{"+selector+"}]}")
	}
	if err := errors.Join(node.WriteManifest("judged.yaml", podManifests("judged", "judged")),
		node.WriteManifest("prober.yaml", podManifests("prober", "prober")), node.WriteManifest("namespace.yaml", namespace("bees"))); err != nil {
		return err
	}
	sender, err := node.AddPod(ctx, "prober")
	if err != nil {
		return err
	}
	receiver, err := node.AddPod(ctx, "judged") // both are removed with the node
	if err != nil {
		return err
	}
	t, err := newTarget(receiver)
	if err != nil {
		return err
	}
	defer t.conn.Close()
	p := prober{began: time.Now(), targets: []*target{t}}
	probing, stop := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error { return sender.Do(func() error { return p.run(probing) }) })
	defer func() { stop(); _ = group.Wait() }()

	for _, kind := range []struct {
		name, policy, file string
		text               func(label string) string
		allowed            string // label of the peers that the policy allows
	}{
		{"a pod", rule("podSelector: {matchLabels: {role: prober}}"), "prober.yaml",
			func(role string) string { return podManifests(role, "prober") }, "prober"},
		{"a namespace", rule("namespaceSelector: {matchLabels: {team: bees}}"), "namespace.yaml", namespace, "bees"},
	} {
		if _, err := p.change(ctx, node, "policies.yaml", kind.policy, p.arrived); err != nil {
			return fmt.Errorf("the policy for labels of %s: %w", kind.name, err)
		}
		var denied, allowed []time.Duration
		for range b.atMost(10) {
			shut, err := p.change(ctx, node, kind.file, kind.text("wasps"), p.lost)
			if err != nil {
				return fmt.Errorf("%s loses its label: %w", kind.name, err)
			}
			open, err := p.change(ctx, node, kind.file, kind.text(kind.allowed), p.arrived)
			if err != nil {
				return fmt.Errorf("%s has its label again: %w", kind.name, err)
			}
			denied, allowed = append(denied, shut), append(allowed, open)
		}
		b.promised("labels of "+kind.name+" change, allow to deny", denied, relabelBudget)
		b.promised("labels of "+kind.name+" change, deny to allow", allowed, relabelBudget)
	}
	return nil
}
