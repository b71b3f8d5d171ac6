package kubeproxy_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// Further flags of "waggle install". Without kube-proxy-replacement=false, the agents serve Services.
var (
	dualStack = []string{"--set", "enable-ipv6=true"}
	native    = []string{"--set", "routing-mode=native", "--set", "auto-direct-node-routes=true"}
	// kept leaves Services to kube-proxy. The agents then reach the API server through its Service.
	kept = []string{"--set", "kube-proxy-replacement=false", "--k8s-api-server="}
)

// TestPrivilegedKubeProxy_KeptAndRemoved runs kube-proxy in mode iptables on one node and in mode nftables on the other.
func TestPrivilegedKubeProxy_KeptAndRemoved(t *testing.T) {
	w := newWorld(t)
	t.Run("kept with a tunnel", func(t *testing.T) {
		w.status(t, "Tunnel", "False")
		w.served(t)
		w.rules(t, true)
	})
	t.Run("kept with routes", func(t *testing.T) {
		w.rollOut(t, slices.Concat(dualStack, native, kept))
		w.status(t, "Native", "False")
		w.served(t)
	})
	t.Run("removed", w.removed)
}

// removed changes a running cluster as Documentation/services.md describes. Connections that kube-proxy translated may break during the change, so the log
// shows how many failed. No later connection may fail.
func (w *world) removed(t *testing.T) {
	talking := w.NewClients("talking", "-every", "200ms")
	clusterIPs := kube.BothTargets("80", one.ipv4, one.ipv6, two.ipv4, two.ipv6)
	if err := errors.Join(
		talking.AddPod(t.Context(), kube.Pod{Name: "client", Node: w.one.Name}, clusterIPs...),
		talking.AddPod(t.Context(), kube.Pod{Name: "client-2", Node: w.two.Name}, clusterIPs...),
		talking.AddNode(w.one, clusterIPs...),
		talking.AddNode(w.two, clusterIPs...),
	); err != nil {
		t.Fatal(err)
	}
	if _, err := talking.WaitCounts(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := talking.Until(t, "answers", kube.AnyServer)
	w.rollOut(t, slices.Concat(dualStack, native))
	w.status(t, "Native", "True")
	for _, n := range w.Nodes {
		if err := n.RemoveKubeProxy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.rules(t, false)
	alone := talking.Until(t, "answers without kube-proxy", kube.AnyServer)
	for name, count := range alone {
		if failed := count.Failed - before[name].Failed; failed > 0 {
			t.Logf("%s: %d failed during the change; the last: %q", name, failed, count.Errors)
		}
	}
	w.served(t)
	talking.Lost(t, alone, talking.Until(t, "more answers without kube-proxy", kube.AnyServer))
}
