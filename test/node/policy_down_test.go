package node_test

import (
	"errors"
	"maps"
	"testing"
)

// While the agent does not run, policies, labels of pods and labels of a namespace change. The old and the new state allow the same connections, and any
// mixture of both allows or denies others. From its start the agent enforces one state or the other: no packet passes that both deny. Of the traffic that both
// allow, packets are lost only between a pod with its new state and a pod with its old one, for the instant in which the kernel switches all pods.
func TestPrivilegedPolicy_ChangesWhileTheAgentIsDown_ApplyAtomically(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// x/a is isolated under either value of its label; x/b may reach it under either value of its own label, and w/* by their namespace.
	rule := func(subject, peer, team string) string {
		return "podSelector: {matchLabels: {" + subject + "}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {" + peer + "}}}, " +
			"{namespaceSelector: {matchLabels: {" + team + "}}}]}]"
	}
	states := []func(){
		func() {
			w.write(t, "pods.yaml", podManifests(policyPods))
			w.write(t, "namespaces.yaml", namespaceManifests(nil))
			w.write(t, "policies.yaml", networkPolicy("x", rule("app: a", "app: b", "team: w"))+w.mark())
		},
		func() {
			pods := maps.Clone(policyPods)
			pods["x/a"], pods["x/b"] = "labels: {application: a}}, spec: {containers: [{name: c}]}", "labels: {application: b}}, spec: {containers: [{name: c}]}"
			w.write(t, "pods.yaml", podManifests(pods))
			w.write(t, "namespaces.yaml", namespaceManifests(map[string]string{"w": "crew: w"}))
			w.write(t, "policies.yaml", networkPolicy("x", rule("application: a", "application: b", "crew: w"))+w.mark())
		},
	}
	w.apply(t, networkPolicy("x", rule("app: a", "app: b", "team: w")))
	deniedPeer := w.knock(t, "z/a", "x/a")
	friends := w.talk(t, [2]string{"x/b", "x/a"}, [2]string{"w/a", "x/a"}, [2]string{"x/a", "w/b"})

	var restarts []span
	for i := range times(t, 2, 6) {
		if err := w.KillAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.steps++
		states[(i+1)%2]()
		begin := friends.At() // without an agent nothing changes
		if err := w.StartAgent(); err != nil {
			t.Fatal(err)
		}
		waitReady(t, w.Node)
		eventually(t, func() error {
			if !w.tryFor(t, matrixTimeout, 0, []flow{{theOutside, marker, false, "udp", w.markedPort()}})[0] {
				return errors.New("what changed meanwhile is not in force")
			}
			return nil
		})
		restarts = append(restarts, span{begin, friends.At()})
	}
	deniedPeer.unheard(t)
	hardlyDisturbed(t, friends, restarts)
}
