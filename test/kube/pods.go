package kube

import (
	"context"
	"fmt"
)

// Pod holds the settings of a pod. Its object has no fields other than these and the required ones.
type Pod struct {
	Namespace string // "" means [Cluster.Namespace]
	Name      string
	Node      string // "" lets the scheduler choose
	Labels    map[string]string
	Image     string   // "" means ClientImage
	Command   []string // nil sleeps
	HostNet   bool
	Ports     map[string]int // named container ports of TCP
	CPU       string         // requested CPU; "" means cpuRequest

	Privileged bool
	HostPaths  map[string]string // folder of the node, mounted at the same path -> mount propagation, "" for none
}

// cpuRequest of a pod. The kernel gives a pod without a request so little of a busy CPU that a client waits for tens of seconds between two instructions, and
// its connections time out although they were answered.
const cpuRequest = "10m"

// CreatePod creates a pod and does not wait until it runs.
func (c *Cluster) CreatePod(ctx context.Context, p Pod) error {
	namespace := orElse(p.Namespace, c.Namespace)
	command := p.Command
	if command == nil {
		command = []string{"sleep", "1000000"}
	}
	volumes, mounts := p.hostPaths()
	ports := []map[string]any{}
	for name, number := range p.Ports {
		ports = append(ports, map[string]any{"name": name, "containerPort": number})
	}
	spec := map[string]any{
		"terminationGracePeriodSeconds": 0, "hostNetwork": p.HostNet, "automountServiceAccountToken": false, "enableServiceLinks": false,
		"containers": []map[string]any{{"name": "main", "image": orElse(p.Image, ClientImage), "imagePullPolicy": "Never", "command": command, "ports": ports,
			"securityContext": map[string]any{"privileged": p.Privileged}, "volumeMounts": mounts, "resources": map[string]any{"requests": map[string]string{"cpu": orElse(p.CPU, cpuRequest)}},
			"env": []map[string]any{{"name": "NODE", "valueFrom": map[string]any{"fieldRef": map[string]string{"fieldPath": "spec.nodeName"}}}}}},
		"volumes": volumes,
	}
	if p.Node != "" {
		spec["nodeSelector"] = map[string]string{"kubernetes.io/hostname": p.Node}
	}
	return c.Create(ctx, "/api/v1/namespaces/"+namespace+"/pods", map[string]any{"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": p.Name, "namespace": namespace, "labels": p.Labels}, "spec": spec})
}

func (p Pod) hostPaths() (volumes, mounts []map[string]any) {
	for path, propagation := range p.HostPaths {
		name := fmt.Sprintf("path-%d", len(volumes))
		volumes = append(volumes, map[string]any{"name": name, "hostPath": map[string]string{"path": path, "type": "DirectoryOrCreate"}})
		mounts = append(mounts, map[string]any{"name": name, "mountPath": path, "mountPropagation": orElse(propagation, "None")})
	}
	return volumes, mounts
}

// RunPod creates a pod and waits until it is ready.
func (c *Cluster) RunPod(ctx context.Context, p Pod) error {
	if err := c.CreatePod(ctx, p); err != nil {
		return err
	}
	return c.WaitPodReady(ctx, orElse(p.Namespace, c.Namespace)+"/"+p.Name)
}

// WaitPodReady waits until a pod, "namespace/name" or a name, is ready. The error after a timeout describes the pod.
func (c *Cluster) WaitPodReady(ctx context.Context, pod string) error {
	err := c.WaitFor(ctx, "pod "+pod+" to be Ready", func() error {
		o, err := c.pod(ctx, pod)
		if err != nil {
			return err
		}
		return o.condition("Ready")
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, c.Describe(context.WithoutCancel(ctx), pod))
	}
	return nil
}

// PodIPs returns the addresses of a pod, "namespace/name".
func (c *Cluster) PodIPs(ctx context.Context, pod string) (ips []string, err error) {
	o, err := c.pod(ctx, pod)
	for _, ip := range o.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	return ips, err
}

// DeletePod deletes a pod, "namespace/name" or a name, and waits until kubelet has removed it.
func (c *Cluster) DeletePod(ctx context.Context, pod string) error {
	if err := c.Delete(ctx, c.podPath(pod)); err != nil {
		return err
	}
	return c.WaitFor(ctx, "pod "+pod+" to be gone", func() error {
		o, err := c.pod(ctx, pod)
		if err == nil {
			return fmt.Errorf("it exists, being deleted since %s", o.Metadata.DeletionTimestamp)
		}
		if isNotFound(err) {
			return nil
		}
		return err
	})
}

func (c *Cluster) pod(ctx context.Context, pod string) (o object, err error) {
	err = c.GetObject(ctx, c.podPath(pod), &o)
	return o, err
}

func (c *Cluster) podPath(pod string) string {
	namespace, name := c.splitName(pod)
	return "/api/v1/namespaces/" + namespace + "/pods/" + name
}

func orElse(value, other string) string {
	if value == "" {
		return other
	}
	return value
}
