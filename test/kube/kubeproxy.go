package kube

import (
	"context"
	"strings"
)

// proxyToken authenticates kube-proxy as the user that Kubernetes binds to the ClusterRole system:node-proxier.
const proxyToken = "kube-proxy"

// StartKubeProxy starts kube-proxy in the mode "iptables" or "nftables". The flags for connection tracking leave its settings unchanged: the limit belongs to
// the machine.
func (n *Node) StartKubeProxy(mode string) (err error) {
	n.proxyMode = mode
	const kubeconfig = "/etc/kubernetes/kube-proxy.kubeconfig"
	if err := n.cluster.WriteKubeconfig(n.Path(kubeconfig), proxyToken); err != nil {
		return err
	}
	n.kubeProxy, err = n.cluster.component(n.StartProcess("kube-proxy", n.cluster.bin.kube+"/kube-proxy", "--kubeconfig="+kubeconfig,
		"--proxy-mode="+mode, "--hostname-override="+n.Name, "--cluster-cidr="+n.cluster.options.ClusterCIDR, "--oom-score-adj=0",
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"))
	return err
}

// RemoveKubeProxy kills kube-proxy and removes its rules with "kube-proxy --cleanup". After the mode nftables, it also deletes the entries of translated
// connections from the connection tracking table, as Documentation/services.md describes.
func (n *Node) RemoveKubeProxy(ctx context.Context) error {
	if err := n.kubeProxy.Kill(); err != nil {
		return err
	}
	if _, err := n.Run(ctx, n.cluster.bin.kube+"/kube-proxy", "--cleanup"); err != nil || n.proxyMode != "nftables" {
		return err
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, translated := range []string{"--dst-nat", "--src-nat"} {
			// The command also fails if no such entry exists.
			if _, err := n.Run(ctx, "conntrack", "-D", "-f", family, translated); err != nil && !strings.Contains(err.Error(), " 0 flow entries have been deleted") {
				return err
			}
		}
	}
	return nil
}
