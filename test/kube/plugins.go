package kube

import (
	"fmt"
)

// InstallBridge configures Debian's reference plugins as the node's network: pods get addresses of a range on a bridge of the node. It serves tests of a
// cluster without Waggle.
func (n *Node) InstallBridge(cidr string) error {
	if err := n.installPlugins("bridge", "host-local"); err != nil {
		return err
	}
	return n.WriteFile("/etc/cni/net.d/10-bridge.conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "bridge", "plugins": [
 {"type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": false,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`, cidr), 0o644)
}
