package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
)

const daemonSets = "/apis/apps/v1/namespaces/" + waggleNamespace + "/daemonsets"

// nodeLabel is what "waggle install" wants of a node.
const nodeLabel = "kubernetes.io/os"

// DaemonSet is the name of the DaemonSet whose agent runs on the nodes.
func (c *Cluster) DaemonSet() string { return orElse(c.daemonSet, waggleDaemonSet) }

func (c *Cluster) daemonSetPath() string { return daemonSets + "/" + c.DaemonSet() }

// WithdrawAgent takes the agent off the tenant's node and waits until it has gone. Its DaemonSet stays.
func (c *Cluster) WithdrawAgent(ctx context.Context) error {
	n := c.Nodes[0]
	if err := c.MergePatch(ctx, "/api/v1/nodes/"+n.Name, fmt.Sprintf(`{"metadata": {"labels": {%q: null}}}`, nodeLabel)); err != nil {
		return err
	}
	return c.WaitFor(ctx, "the agent of "+n.Name+" to go", func() error {
		pods, err := c.AgentPods(ctx)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("there are %v", pods)
		}
		return err
	})
}

// ReturnAgent undoes [Cluster.WithdrawAgent] and waits until the agent is ready.
func (c *Cluster) ReturnAgent(ctx context.Context) error {
	return errors.Join(c.MergePatch(ctx, "/api/v1/nodes/"+c.Nodes[0].Name, fmt.Sprintf(`{"metadata": {"labels": {%q: "linux"}}}`, nodeLabel)),
		c.WaitWaggle(ctx))
}

// OwnDaemonSet moves the tenant's node from the shared DaemonSet to a copy of it for this node alone, which the test may change.
func (c *Cluster) OwnDaemonSet(ctx context.Context) error {
	var set struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       struct {
			Selector       map[string]any `json:"selector"`
			UpdateStrategy any            `json:"updateStrategy"`
			Template       struct {
				Metadata struct {
					Labels      map[string]string `json:"labels"`
					Annotations map[string]string `json:"annotations"`
				} `json:"metadata"`
				Spec map[string]any `json:"spec"`
			} `json:"template"`
		} `json:"spec"`
	}
	if err := c.GetObject(ctx, c.daemonSetPath(), &set); err != nil {
		return err
	}
	name := waggleDaemonSet + "-" + c.Nodes[0].Name
	label := map[string]string{"app.kubernetes.io/name": name}
	set.Metadata = map[string]any{"name": name, "namespace": waggleNamespace}
	set.Spec.Selector = map[string]any{"matchLabels": label}
	maps.Copy(set.Spec.Template.Metadata.Labels, label)
	set.Spec.Template.Spec["nodeSelector"] = map[string]string{"kubernetes.io/hostname": c.Nodes[0].Name}
	if err := c.WithdrawAgent(ctx); err != nil {
		return err
	}
	c.daemonSet = name
	return errors.Join(c.Create(ctx, daemonSets, set), c.WaitWaggle(ctx))
}

func (c *Cluster) deleteDaemonSet(ctx context.Context) error {
	if c.daemonSet == "" {
		return nil
	}
	return ignoreNotFound(c.Delete(ctx, c.daemonSetPath()+"?propagationPolicy=Background"))
}

// agentPodReady wants the agent of the tenant's node to be ready.
func (c *Cluster) agentPodReady(ctx context.Context) error {
	pods, err := c.AgentPods(ctx)
	if err != nil {
		return err
	}
	if len(pods) != 1 {
		return fmt.Errorf("the agents of %s are %v", c.Nodes[0].Name, pods)
	}
	pod, err := c.pod(ctx, pods[0])
	if err != nil {
		return err
	}
	return pod.condition("Ready")
}
