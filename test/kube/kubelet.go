package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

const (
	kubeletConfig = `{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
 "failCgroupV1": false, "cgroupDriver": "cgroupfs", "enforceNodeAllocatable": [], "localStorageCapacityIsolation": false,
 "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}}, "authorization": {"mode": "AlwaysAllow"},
 "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock", "volumePluginDir": "/var/lib/kubelet/volume-plugins",
 "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
 "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"}, "imageGCHighThresholdPercent": 100, "failSwapOn": false, "maxPods": 500, "podsPerCore": 0, "oomScoreAdj": 0,
 "tlsCertFile": "/etc/kubernetes/kubelet.crt", "tlsPrivateKeyFile": "/etc/kubernetes/kubelet.key",
 "staticPodPath": "/etc/kubernetes/manifests", "clusterDNS": ["10.96.0.10"], "clusterDomain": "cluster.local"}
`
	containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PauseImage + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
`
)

// writeFiles writes the configuration of containerd and kubelet. The runtime itself calls the plugin loopback.
func (n *Node) writeFiles() error {
	own, err := newPair(n.Name, nil, []string{n.IPv4, n.IPv6}) // without a certificate, kubelet generates an RSA key at each start
	if err != nil {
		return err
	}
	failed := errors.Join(
		n.WriteFile("/etc/kubernetes/kubelet.crt", string(own.certPEM), 0o644), n.WriteFile("/etc/kubernetes/kubelet.key", string(own.keyPEM), 0o600),
		n.WriteFile("/etc/kubernetes/kubelet.json", kubeletConfig, 0o644),
		n.WriteFile("/etc/kubernetes/manifests/.keep", "", 0o644), // kubelet ignores names that start with a dot
		n.WriteFile("/etc/containerd/config.toml", containerdConfig, 0o644),
		n.cluster.WriteKubeconfig(n.Path("/etc/kubernetes/kubelet.kubeconfig"), nodeToken(n.Name)))
	return errors.Join(failed, n.installPlugins("loopback"))
}

// installPlugins copies reference plugins to the node.
func (n *Node) installPlugins(names ...string) error {
	for _, name := range names {
		program, err := os.ReadFile("/usr/lib/cni/" + name)
		if err != nil {
			return fmt.Errorf("%w: run \"make packages\"", err)
		}
		if err := n.WriteFile("/opt/cni/bin/"+name, string(program), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// startRuntime starts containerd for the first time and loads the images.
func (n *Node) startRuntime(ctx context.Context) error {
	if err := n.StartContainerd(ctx); err != nil {
		return err
	}
	for _, archive := range n.cluster.archives() {
		if err := n.LoadImage(ctx, archive); err != nil {
			return err
		}
	}
	return nil
}

// StartContainerd starts containerd, initially or after [Node.StopContainerd].
func (n *Node) StartContainerd(ctx context.Context) (err error) {
	if n.containerd, err = n.cluster.component(n.StartProcess("containerd", "containerd", "--config", "/etc/containerd/config.toml")); err != nil {
		return err
	}
	return n.cluster.WaitFor(ctx, "containerd of "+n.Name, func() error {
		_, err := n.Run(ctx, "ctr", "version")
		return err
	})
}

// StartKubelet starts kubelet, initially or after [Node.StopKubelet].
func (n *Node) StartKubelet() (err error) {
	args := []string{n.cluster.bin.kube + "/kubelet", "--config=/etc/kubernetes/kubelet.json", "--kubeconfig=/etc/kubernetes/kubelet.kubeconfig",
		"--hostname-override=" + n.Name, "--node-ip=" + n.IPv4 + "," + n.IPv6, "--root-dir=/var/lib/kubelet"}
	if taints := n.cluster.options.Taints; len(taints) > 0 {
		args = append(args, "--register-with-taints="+strings.Join(taints, ","))
	}
	if n.cluster.options.OwnDaemonSet {
		args = append(args, "--node-labels="+ownLabel+"=true")
	}
	n.kubelet, err = n.cluster.component(n.StartProcess("kubelet", append(args, n.cluster.options.KubeletArgs...)...))
	return err
}

// StopKubelet kills kubelet; pods keep running.
func (n *Node) StopKubelet() error { return n.kubelet.Kill() }

// RestartKubelet kills kubelet and starts it again.
func (n *Node) RestartKubelet() error { return errors.Join(n.StopKubelet(), n.StartKubelet()) }

// StopContainerd kills containerd; containers keep running.
func (n *Node) StopContainerd() error { return n.containerd.Kill() }

// WaitRegistered waits until the API server has the Node object.
func (n *Node) WaitRegistered(ctx context.Context) error {
	return n.cluster.WaitFor(ctx, "the object of "+n.Name, func() error {
		_, err := n.cluster.Get(ctx, "/api/v1/nodes/"+n.Name)
		return err
	})
}

// WaitReady waits until kubelet reports the node as ready.
func (n *Node) WaitReady(ctx context.Context) error {
	return n.cluster.WaitFor(ctx, n.Name+" to be Ready", func() error {
		var node object
		if err := n.cluster.GetObject(ctx, "/api/v1/nodes/"+n.Name, &node); err != nil {
			return err
		}
		return node.condition("Ready")
	})
}
