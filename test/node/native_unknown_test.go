package node_test

import "testing"

// Without a tunnel, a node does not treat pods of another node that it does not know yet as the entity world, and packets to them do not get the address of
// this node.
func TestPrivilegedNative_UnknownRemotePods(t *testing.T) {
	t.Parallel()
	unknownRemotePods(t, func(*testing.T, []kubeNode) {}, "--routing-mode=native", "--auto-direct-node-routes")
}

// unknownRemotePods starts two nodes, and tests the verdicts once areReady has waited until the nodes are ready.
func unknownRemotePods(t *testing.T, areReady func(*testing.T, []kubeNode), args ...string) {
	t.Helper()
	all := startKubeCluster(t, 2, args...)
	areReady(t, all)
	one, two := all[0], all[1]
	p := newNodePair(t, two, one)
	open := two.startPod(t, "open", map[string]string{"app": "open"})
	two.server.Stop()
	late := one.startPod(t, "late", map[string]string{"app": "late"})
	one.identityOfCluster(t, late)
	verdicts := func(t *testing.T) {
		p.checkReaches(t, late, open)
		p.checkNotWorld(t, late)
	}
	t.Run("the API server is unreachable", verdicts)
	if err := two.StopAgent(t.Context()); err != nil { // a killed agent may leave a copy of the objects without the last identities
		t.Fatal(err)
	}
	t.Run("the agent is stopped", verdicts)
	if err := two.StartAgent(); err != nil {
		t.Fatal(err)
	}
	waitReady(t, two.Node)
	t.Run("the agent runs again", verdicts)
	if err := two.Do(func() error { two.server.Start(t); return nil }); err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		awaitIdentity(t, two, late.Addr(family.ipv6), one.identityOf(t, late).Identity)
	}
	t.Run("the node has learned the pod", verdicts)
}
