package node_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/nodekit"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// The next release has another layout of ipcache. Only its agent can write the nodes of addresses into it.
func TestPrivilegedUpgrade_Tunnel(t *testing.T) {
	t.Parallel()
	needCompiler(t)
	replace, err := builds.Datapath(func(name, text string) string { return nextIpcache(t, name, text) })
	if err != nil {
		t.Fatal(err)
	}
	next := agentWith(t, replace, edited(t, "cells/identity/ipcachemaps/kernel.go",
		"k.maps.PutPrevious(name, key, bpf.IpcacheEntry{Identity: v.Identity, Node: v.Node}, bpf.PreviousIpcacheEntry(v.Identity, peer))",
		"k.maps.Put(name, key, bpf.IpcacheEntry{Identity: v.Identity, Node: v.Node})"))
	t.Run("under load", func(t *testing.T) {
		t.Parallel()
		tunnelUpAndDown(t, next, func(t *testing.T, n kubeNode, upgraded bool) {
			generation := thisGeneration
			if upgraded {
				generation = otherGeneration
			}
			requireGeneration(t, n.Node, generation)
			if has := ipcachePins(t, n.Node); has["ipcache_v3"] != upgraded || !has["ipcache_v2"] {
				t.Errorf("upgraded %v, pinned are %v", upgraded, has)
			}
		})
	})
	t.Run("crashes before the maps are filled", func(t *testing.T) {
		t.Parallel()
		crashesBeforeMapsAreFilled(t, next)
	})
}

// nextIpcache returns a source file of the next release, where an entry of ipcache begins with the node.
func nextIpcache(t *testing.T, name, text string) string {
	replace := func(old, replacement string) {
		t.Helper()
		if !strings.Contains(text, old) {
			t.Errorf("%s has no %q", name, old)
		}
		text = strings.ReplaceAll(text, old, replacement)
	}
	switch name {
	case "ipcache.h":
		const identity = "	__u32 identity;\n"
		replace("struct ipcache_entry {\n"+identity, "struct ipcache_entry {\n")
		replace("	__u8 pad;\n};\n\nstruct lpm_key {", "	__u8 pad;\n"+identity+"};\n\nstruct lpm_key {")
	case "layouts.go":
		replace("	case MapEndpointFacts, MapIpcache, MapIpcachePrefixes, MapCIDRs, MapAffinity:\n		return 2\n",
			"	case MapEndpointFacts, MapCIDRs, MapAffinity:\n		return 2\n	case MapIpcache, MapIpcachePrefixes:\n		return 3\n")
		replace("Version: 1, Forward: ipcacheIdentity, Back: ipcacheIdentity,", "Version: 2, Forward: nextIpcache, Back: formerIpcache,")
		text += `
func nextIpcache(key, value []byte) ([]byte, []byte, bool) {
	return key, append([]byte{0, 0, 0, 0}, value[:4]...), true
}

func formerIpcache(key, value []byte) ([]byte, []byte, bool) {
	return key, append(append([]byte{}, value[4:]...), value[:4]...), true
}
`
	}
	return text
}

// tunnelPods starts two pods on each of two nodes, and waits until each node knows the pods of the other one and the tunnel to it.
func tunnelPods(t *testing.T, all []kubeNode) map[*nodekit.Node][2]*nodekit.Pod {
	t.Helper()
	pods := map[*nodekit.Node][2]*nodekit.Pod{}
	for _, n := range all {
		pods[n.Node] = [2]*nodekit.Pod{n.startPod(t, "a-"+n.Name(), map[string]string{"app": "a"}), n.startPod(t, "b-"+n.Name(), map[string]string{"app": "b"})}
	}
	for i, n := range all {
		other := all[1-i]
		for _, pod := range pods[other.Node] {
			number := other.identityOfCluster(t, pod).Identity
			for _, family := range families {
				awaitIdentity(t, n, pod.Addr(family.ipv6), number)
			}
		}
		awaitTunnel(t, n.Node, 2)
	}
	return pods
}

// tunnelUpAndDown upgrades two nodes, one after the other, to another agent and back, while pods of both exchange traffic through the tunnel. No packet is
// lost. reached waits until the current agent has replaced the objects of the previous one.
func tunnelUpAndDown(t *testing.T, other string, reached func(t *testing.T, n kubeNode, upgraded bool)) {
	t.Helper()
	all := startKubeCluster(t, 2, "--routing-mode=tunnel")
	pods := tunnelPods(t, all)
	one, two := pods[all[0].Node], pods[all[1].Node]
	var paths []load.Path
	for _, f := range families {
		paths = append(paths,
			load.Path{Name: "first to second " + f.name, From: one[0], To: two[0], Addr: two[0].Addr(f.ipv6)},
			load.Path{Name: "second to first " + f.name, From: two[1], To: one[1], Addr: one[1].Addr(f.ipv6)})
	}
	l := load.StartFor(t, gentle(), paths, nil)
	for _, n := range all {
		for _, agent := range []string{other, ""} {
			t.Logf("%v %s to the agent %q", l.At(), n.Name(), agent)
			if err := n.UpgradeAgent(t.Context(), agent); err != nil {
				t.Fatal(err)
			}
			reached(t, n, agent != "")
			late := n.startPod(t, fmt.Sprintf("late-%s-%t", n.Name(), agent != ""), map[string]string{"app": "a"})
			for _, f := range families {
				if err := errors.Join(nodekit.Ping(late, one[0].Addr(f.ipv6), 56), nodekit.Ping(late, two[0].Addr(f.ipv6), 56)); err != nil {
					t.Errorf("%s: %v", f.name, err)
				}
			}
			if err := late.Detach(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	lostNothing(t, l)
}

// ipcachePins returns the existing pins of ipcache and their marks.
func ipcachePins(t *testing.T, n *nodekit.Node) map[string]bool {
	t.Helper()
	facts, err := lastingNow(n)
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, fact := range facts {
		if _, name, found := strings.Cut(fact, "/waggle/maps/"); found && strings.Contains(name, "ipcache_v") {
			has[name] = true
		}
	}
	return has
}

// crashesBeforeMapsAreFilled ends agents of another release between the pin of a map of another layout and the write of its entries, which need an unavailable
// API server. Hooks stay unchanged until the map is filled, and pods of both nodes reach each other.
func crashesBeforeMapsAreFilled(t *testing.T, other string) {
	t.Helper()
	all := startKubeCluster(t, 2, "--routing-mode=tunnel")
	pods := tunnelPods(t, all)
	one, two := all[0], all[1]
	from, to := pods[one.Node][0], pods[two.Node][0]
	before := hooks(t, one.Node)
	stop := pingOnAndOn(t, from, to.Addr(false), to.Addr(true))
	if err := one.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	one.server.Stop()
	one.UseAgent(other)
	for range 3 {
		if err := one.StartAgent(); err != nil { // it is not ready before it needs its programs
			t.Fatal(err)
		}
		const waits = "waiting for the entries of all endpoints in new maps"
		one.awaitRow(t, "health", waits)
		if has := ipcachePins(t, one.Node); !has["ipcache_v3"] || !has["filling_ipcache_v3"] {
			t.Errorf("the map is not marked as one to be filled: %v", has)
		}
		if now := hooks(t, one.Node); now != before {
			t.Fatalf("the hooks carried %q, now %q", before, now)
		}
		if err := one.KillAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(one.Do(func() error { one.server.Start(t); return nil }), one.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, one.Node)
	requireGeneration(t, one.Node, otherGeneration)
	eventually(t, func() error {
		if has := ipcachePins(t, one.Node); has["filling_ipcache_v3"] {
			return fmt.Errorf("the map is filled, and has its mark: %v", has)
		}
		return nil
	})
	stop()
}
