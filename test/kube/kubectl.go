package kube

import (
	"context"
	"fmt"
	"strings"
)

// Kubectl runs kubectl as admin, in [Cluster.Namespace] unless the arguments name another namespace, and returns the output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.KubectlInput(ctx, "", args...)
}

// KubectlInput runs kubectl with standard input, for example for "apply -f -".
func (c *Cluster) KubectlInput(ctx context.Context, input string, args ...string) (string, error) {
	return run(ctx, c.control, strings.NewReader(input), append([]string{c.bin.kube + "/kubectl", "--kubeconfig=" + c.adminKubeconfig(),
		"--cache-dir=" + c.path("kubectl-cache")}, args...)...)
}

// adminKubeconfig returns the path of the admin kubeconfig whose default namespace is [Cluster.Namespace].
func (c *Cluster) adminKubeconfig() string { return c.path("admin-" + c.Namespace + ".kubeconfig") }

// Apply applies manifests with kubectl.
func (c *Cluster) Apply(ctx context.Context, manifests string) error {
	_, err := c.KubectlInput(ctx, manifests, "apply", "-f", "-")
	return err
}

// Exec runs a program in the first container of a pod, "namespace/name", and returns its output.
func (c *Cluster) Exec(ctx context.Context, pod string, argv ...string) (string, error) {
	namespace, name := c.splitName(pod)
	return c.Kubectl(ctx, append([]string{"exec", "-n", namespace, name, "--"}, argv...)...)
}

// Logs returns the logs of all containers of a pod, "namespace/name".
func (c *Cluster) Logs(ctx context.Context, pod string) (string, error) {
	namespace, name := c.splitName(pod)
	return c.Kubectl(ctx, "logs", "-n", namespace, name, "--all-containers", "--prefix", "--tail=-1")
}

// Describe returns the output of "kubectl describe pod" for failure messages.
func (c *Cluster) Describe(ctx context.Context, pod string) string {
	namespace, name := c.splitName(pod)
	out, err := c.Kubectl(ctx, "describe", "pod", "-n", namespace, name)
	if err != nil {
		return fmt.Sprintf("%s%v", out, err)
	}
	return out
}

func (c *Cluster) splitName(pod string) (namespace, name string) {
	namespace, name, ok := strings.Cut(pod, "/")
	if !ok {
		return c.Namespace, pod
	}
	return namespace, name
}
