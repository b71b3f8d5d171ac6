package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Names of objects that "waggle install" prints.
const (
	waggleNamespace = "kube-system"
	waggleDaemonSet = "waggle"
	waggleConfigMap = "waggle-config"
	AgentAccount    = waggleNamespace + "/waggle" // the agents' ServiceAccount
	cniConf         = "/etc/cni/net.d/05-waggle.conflist"
)

// InstallWaggle installs Waggle as a user would: it loads the image of "make image" on each node, pipes the output of "waggle install" with further flags
// into kubectl, and waits until all agents and nodes are ready.
func (c *Cluster) InstallWaggle(ctx context.Context, flags ...string) error {
	if err := errors.Join(c.owned(), c.addImage(ctx, c.archive())); err != nil {
		return err
	}
	if err := c.ApplyWaggle(ctx, flags...); err != nil {
		return err
	}
	return c.WaitWaggle(ctx)
}

// ApplyWaggle applies the output of "waggle install" with further flags and does not wait. The flags tell agents the API server's
// address, because without kube-proxy its Service needs the agents; a further flag --k8s-api-server overrides it.
func (c *Cluster) ApplyWaggle(ctx context.Context, flags ...string) error {
	if err := c.owned(); err != nil {
		return err
	}
	manifests, err := c.printWaggle(ctx, flags...)
	if err != nil {
		return err
	}
	return c.Apply(ctx, manifests)
}

// printWaggle returns the output of "waggle install" with further flags. The cluster has no kube-proxy, so the flags tell agents the API server's address.
func (c *Cluster) printWaggle(ctx context.Context, flags ...string) (string, error) {
	// This sets the image name of the archive, which differs from the default if the programs were built again after the image.
	image, err := imageName(c.archive())
	if err != nil {
		return "", fmt.Errorf("%w: run \"make image\"", err)
	}
	return run(ctx, c.control, nil, append([]string{filepath.Join(c.bin.waggle, "waggle"), "install", "--image", image, "--k8s-api-server", c.URL}, flags...)...)
}

// archive returns the path of the archive that "make image" writes.
func (c *Cluster) archive() string { return filepath.Join(c.bin.waggle, "waggle-image.tar") }

// WaitWaggle waits until the agents of the DaemonSet and the nodes are ready. The error after a timeout describes the agents' pods.
func (c *Cluster) WaitWaggle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	err := c.WaitFor(ctx, "the agents to be ready", func() error { return c.agentsReady(ctx) })
	for _, n := range c.Nodes {
		if err == nil {
			err = n.WaitReady(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, c.describeAgents(context.WithoutCancel(ctx)))
	}
	return nil
}

func (c *Cluster) agentsReady(ctx context.Context) error {
	if c.host != nil && c.daemonSet == "" {
		return c.agentPodReady(ctx)
	}
	var set struct {
		Status struct{ DesiredNumberScheduled, NumberReady, UpdatedNumberScheduled int }
	}
	if err := c.GetObject(ctx, c.daemonSetPath(), &set); err != nil {
		return err
	}
	if s := set.Status; s.NumberReady != len(c.Nodes) || s.UpdatedNumberScheduled != len(c.Nodes) {
		return fmt.Errorf("%d of %d are ready, %d of %d scheduled", s.NumberReady, len(c.Nodes), s.DesiredNumberScheduled, len(c.Nodes))
	}
	return nil
}

func (c *Cluster) describeAgents(ctx context.Context) (text string) {
	pods, err := c.AgentPods(ctx)
	if err != nil {
		return err.Error()
	}
	for _, pod := range pods {
		logs, err := c.Logs(ctx, pod)
		text += c.Describe(ctx, pod) + logs
		if err != nil {
			text += err.Error()
		}
	}
	return text
}

// AgentPods returns the pods of the DaemonSet as "namespace/name", ordered by node name. For a tenant it returns only the pod on the tenant's node.
func (c *Cluster) AgentPods(ctx context.Context) (pods []string, err error) {
	var list struct{ Items []object }
	if err := c.GetObject(ctx, "/api/v1/namespaces/"+waggleNamespace+"/pods", &list); err != nil {
		return nil, err
	}
	slices.SortFunc(list.Items, func(a, b object) int { return strings.Compare(a.Spec.NodeName, b.Spec.NodeName) })
	for _, p := range list.Items {
		if c.host != nil && c.Node(p.Spec.NodeName) == nil {
			continue
		}
		for _, o := range p.Metadata.OwnerReferences {
			if o.Kind == "DaemonSet" && o.Name == c.DaemonSet() {
				pods = append(pods, waggleNamespace+"/"+p.Metadata.Name)
			}
		}
	}
	return pods, nil
}

// Token returns a token of a ServiceAccount, "namespace/name", that is bound to a node, as kubelet's tokens are. The token is valid for one hour.
func (c *Cluster) Token(ctx context.Context, account, node string) (string, error) {
	namespace, name := c.splitName(account)
	var n object
	if err := c.GetObject(ctx, "/api/v1/nodes/"+node, &n); err != nil {
		return "", err
	}
	body, err := c.Request(ctx, "POST", "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+name+"/token", fmt.Appendf(nil,
		`{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600,
		"boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": %q, "uid": %q}}}`, node, n.Metadata.UID))
	if err != nil {
		return "", err
	}
	var answer struct{ Status struct{ Token string } }
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", err
	}
	return answer.Status.Token, nil
}

// AgentKubeconfig is the path on a node of the kubeconfig with the token of [Node.StartAgent].
const AgentKubeconfig = "/etc/kubernetes/waggle.kubeconfig"

// StartAgent runs the agent as a process of the node, without an image or a pod, with a token of [Cluster.Token] or with AdminToken. It installs the plugin
// into the runtime's plugin folder. Further flags follow the default ones and override them.
func (n *Node) StartAgent(token string, flags ...string) (*Process, error) {
	plugin, err := os.ReadFile(n.Tool("waggle-cni"))
	if err != nil {
		return nil, fmt.Errorf("%w: run \"make build\"", err)
	}
	if err := n.WriteFile("/opt/cni/bin/waggle-cni", string(plugin), 0o755); err != nil {
		return nil, err
	}
	if err := n.cluster.WriteKubeconfig(n.Path(AgentKubeconfig), token); err != nil {
		return nil, err
	}
	return n.cluster.component(n.StartProcess("agent", append([]string{n.Tool("waggle-agent"), "--node-name=" + n.Name,
		"--k8s-kubeconfig-path=" + AgentKubeconfig, "--write-cni-conf-when-ready=" + cniConf,
		"--cgroup-root=/sys/fs/cgroup", "--stop-timeout=20s"}, flags...)...)) // the default is too short for a busy machine
}

// Tool returns the path of one of Waggle's programs on the node.
func (n *Node) Tool(name string) string { return filepath.Join(n.cluster.bin.waggle, name) }

// Waggle runs the program waggle on the node and returns its output.
func (n *Node) Waggle(ctx context.Context, args ...string) (string, error) {
	return n.Run(ctx, append([]string{n.Tool("waggle")}, args...)...)
}

// WaitStatus waits until the agent's status is as wanted. The exit code of "waggle status" is 1 while a module of the agent is degraded, if only for a moment;
// is gets the status of such a moment, too.
func (n *Node) WaitStatus(ctx context.Context, is func(status string) bool, args ...string) error {
	return n.cluster.WaitFor(ctx, "the status of "+n.Name, func() error {
		status, err := n.Waggle(ctx, append([]string{"status"}, args...)...)
		if wanted := is(status); err == nil && !wanted {
			err = errors.New(status)
		}
		return err
	})
}

// WaitAgentReady waits until the node's agent reports that pods can be attached. The error after a timeout contains the agent's status.
func (n *Node) WaitAgentReady(ctx context.Context) error {
	err := n.cluster.WaitFor(ctx, "the agent of "+n.Name, func() error {
		_, err := n.Waggle(ctx, "status", "--brief")
		return err
	})
	if err != nil {
		status, _ := n.Waggle(context.WithoutCancel(ctx), "status") // the exit code is 1 while the agent is not ready
		return fmt.Errorf("%w\nits status:\n%s", err, status)
	}
	return nil
}
