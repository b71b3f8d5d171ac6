package node_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// When the agents of two machines have the same node name, status reports the other machine with its address, and the number of writes to the CiliumNode is
// limited.
func TestPrivilegedNames_DuplicateNodeName_IsReported(t *testing.T) {
	t.Parallel()
	c, all := newKubeCluster(t, 2)
	one, two := all[0], all[1]
	two.AddAgentArgs("--node-name=" + one.Name())
	if err := one.Node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, one.Node)
	if err := two.Node.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, two.Node)

	addr := c.Nodes[1].UplinkAddr(false).String()
	eventually(t, func() error {
		status, err := one.Waggle(t.Context(), "status")
		if err == nil && !(strings.Contains(status, "is used by two agents") && strings.Contains(status, addr)) {
			err = fmt.Errorf("status does not name the machine with %s:\n%s", addr, status)
		}
		return err
	})

	writes := 0
	for _, n := range all {
		for _, r := range n.server.Requests() {
			if r.Resource == kubeapi.CiliumNodes.String() && r.Verb != "get" && r.Verb != "list" && r.Verb != "watch" {
				writes++
			}
		}
	}
	if most := 12; writes > most { // each agent: created or taken over, with addresses, and twice in conflict with the other
		t.Errorf("%d writes of CiliumNodes, want at most %d", writes, most)
	}
}
