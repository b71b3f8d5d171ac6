package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

const (
	daemonSets = "/apis/apps/v1/namespaces/" + waggleNamespace + "/daemonsets"
	configMaps = "/api/v1/namespaces/" + waggleNamespace + "/configmaps"
)

// ownLabel excludes a node from the shared DaemonSet of [Cluster.InstallShared].
const ownLabel = "waggle.test/own-daemonset"

// DaemonSet returns the name of the DaemonSet whose agent runs on the nodes.
func (c *Cluster) DaemonSet() string { return orElse(c.daemonSet, waggleDaemonSet) }

func (c *Cluster) daemonSetPath() string { return daemonSets + "/" + c.DaemonSet() }

// InstallShared installs Waggle as [Cluster.InstallWaggle] does, except on the nodes of tenants with [NodeOptions.OwnDaemonSet].
func (c *Cluster) InstallShared(ctx context.Context, flags ...string) error {
	if err := errors.Join(c.owned(), c.addImage(ctx, c.archive())); err != nil {
		return err
	}
	if err := c.ApplyWaggle(ctx, flags...); err != nil {
		return err
	}
	c.sharedFlags = flags
	return errors.Join(c.MergePatch(ctx, c.daemonSetPath(), `{"spec": {"template": {"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
		{"nodeSelectorTerms": [{"matchExpressions": [{"key": "`+ownLabel+`", "operator": "DoesNotExist"}]}]}}}}}}}`), c.WaitWaggle(ctx))
}

// WithdrawAgent removes the agents from the nodes and waits until their pods are deleted. The DaemonSet stays.
func (c *Cluster) WithdrawAgent(ctx context.Context) error {
	if err := c.selectNodes(ctx, `"true"`); err != nil {
		return err
	}
	return c.WaitFor(ctx, "the agents to go", func() error {
		pods, err := c.AgentPods(ctx)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("there are %v", pods)
		}
		return err
	})
}

// ReturnAgent undoes [Cluster.WithdrawAgent] and waits until the agents are ready.
func (c *Cluster) ReturnAgent(ctx context.Context) error {
	return errors.Join(c.selectNodes(ctx, "null"), c.WaitWaggle(ctx))
}

func (c *Cluster) selectNodes(ctx context.Context, nowhere string) error {
	if c.host != nil && c.daemonSet == "" {
		return errors.New("the DaemonSet is shared: give the tenant a copy with NodeOptions.OwnDaemonSet")
	}
	return c.MergePatch(ctx, c.daemonSetPath(), `{"spec": {"template": {"spec": {"nodeSelector": {"nowhere": `+nowhere+`}}}}}`)
}

// daemonSet holds a DaemonSet with the fields that a copy changes.
type daemonSet struct {
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

// copyDaemonSet creates a copy of the shared DaemonSet that runs on the tenant's node only.
func (c *Cluster) copyDaemonSet(ctx context.Context) error {
	name := waggleDaemonSet + "-" + c.Nodes[0].Name
	set, err := c.templateOf(ctx, name)
	if err != nil {
		return err
	}
	label := map[string]string{"app.kubernetes.io/name": name}
	set.Metadata = map[string]any{"name": name, "namespace": waggleNamespace}
	set.Spec.Selector = map[string]any{"matchLabels": label}
	maps.Copy(set.Spec.Template.Metadata.Labels, label)
	set.Spec.Template.Spec["nodeSelector"] = map[string]string{"kubernetes.io/hostname": c.Nodes[0].Name}
	delete(set.Spec.Template.Spec, "affinity")
	c.daemonSet = name
	return c.Create(ctx, daemonSets, set)
}

// templateOf returns the DaemonSet from which the tenant's copy is made. With [NodeOptions.InstallFlags] it also creates the ConfigMap of the copy.
func (c *Cluster) templateOf(ctx context.Context, name string) (set daemonSet, err error) {
	if len(c.options.InstallFlags) == 0 {
		err = c.GetObject(ctx, c.daemonSetPath(), &set)
		return set, err
	}
	text, err := c.printWaggle(ctx, slices.Concat([]string{"--only", "agent,config", "--output", "json"}, c.host.sharedFlags, c.options.InstallFlags)...)
	if err != nil {
		return set, err
	}
	var list struct{ Items []json.RawMessage }
	if err := json.Unmarshal([]byte(strings.ReplaceAll(text, strconv.Quote(waggleConfigMap), strconv.Quote(name))), &list); err != nil {
		return set, err
	}
	for _, item := range list.Items {
		var object struct{ Kind string }
		err = errors.Join(err, json.Unmarshal(item, &object))
		switch object.Kind {
		case "ConfigMap":
			err = errors.Join(err, c.Create(ctx, configMaps, item))
		case "DaemonSet":
			err = errors.Join(err, json.Unmarshal(item, &set))
		}
	}
	return set, err
}

func (c *Cluster) deleteDaemonSet(ctx context.Context) error {
	if c.daemonSet == "" {
		return nil
	}
	return errors.Join(ignoreNotFound(c.Delete(ctx, c.daemonSetPath()+"?propagationPolicy=Background")), ignoreNotFound(c.Delete(ctx, configMaps+"/"+c.daemonSet)))
}

// agentPodReady returns nil if the agent of the tenant's node is ready.
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
