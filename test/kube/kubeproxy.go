package kube

import (
	"context"
)

// proxyToken authenticates kube-proxy as the user that Kubernetes binds to the ClusterRole system:node-proxier.
const proxyToken = "kube-proxy"

// StartKubeProxy starts kube-proxy in the mode "iptables" or "nftables". The flags for connection tracking leave its settings unchanged: the limit belongs to
// the machine.
func (n *Node) StartKubeProxy(mode string) (err error) {
	const kubeconfig = "/etc/kubernetes/kube-proxy.kubeconfig"
	if err := n.cluster.WriteKubeconfig(n.Path(kubeconfig), proxyToken); err != nil {
		return err
	}
	n.kubeProxy, err = n.cluster.component(n.StartProcess("kube-proxy", n.cluster.bin.kube+"/kube-proxy", "--kubeconfig="+kubeconfig,
		"--proxy-mode="+mode, "--hostname-override="+n.Name, "--cluster-cidr="+n.cluster.options.ClusterCIDR, "--oom-score-adj=0",
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"))
	return err
}

// RemoveKubeProxy kills kube-proxy and removes its rules with "kube-proxy --cleanup".
func (n *Node) RemoveKubeProxy(ctx context.Context) error {
	if err := n.kubeProxy.Kill(); err != nil {
		return err
	}
	_, err := n.Run(ctx, n.cluster.bin.kube+"/kube-proxy", "--cleanup")
	return err
}
