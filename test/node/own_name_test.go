package node_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/kubeapi"
)

// Two machines whose agents have one node name: status names the other one, with its address, and the CiliumNode is not written without end.
func TestPrivilegedNames_NodeNameOfTwoMachines(t *testing.T) {
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
	if most := 12; writes > most { // each agent: made or taken over, with addresses, twice against the other one
		t.Errorf("%d writes of CiliumNodes, want at most %d", writes, most)
	}
}
