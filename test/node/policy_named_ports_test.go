package node_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
)

// The objects of pods are deleted, as after a forced deletion, while their containers still run: a port that a policy denies by its name stays denied, on
// ingress to the pod and on egress of its peers, also by the next agent.
func TestPrivilegedPolicy_NamedPortsOfDeletedPodObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	denies := ciliumPolicy("x", subjectA+"ingress: [{fromEntities: [all]}], "+
		"ingressDeny: [{fromEntities: [all], toPorts: [{ports: [{port: web, protocol: TCP}]}]}]") + "\n" +
		ciliumPolicy("z", "endpointSelector: {}, egress: [{toEntities: [all]}], egressDeny: [{toEndpoints: [{matchLabels: "+
			"{'k8s:io.kubernetes.pod.namespace': w}}], toPorts: [{ports: [{port: web, protocol: TCP}]}]}]")
	w.apply(t, denies)
	denied := func(f flow) bool {
		return f.to == "x/a" && f.from != theNode && on("tcp", 80)(f) || f.to == "w/a" && within("z/a z/liar", f.from) && on("tcp", 80)(f)
	}
	w.compare(t, usual, func(f flow) bool { return !denied(f) })

	left := maps.Clone(policyPods)
	delete(left, "x/a")
	delete(left, "w/a")
	w.write(t, "pods.yaml", podManifests(left))
	eventually(t, func() error {
		text, err := w.Waggle(t.Context(), "db", "show", "k8s-pods")
		if err == nil && (strings.Contains(text, "x/a") || strings.Contains(text, "w/a")) {
			err = fmt.Errorf("the objects are still known:\n%s", text)
		}
		return err
	})
	w.apply(t, denies)
	for round, step := range []func() error{
		func() error { return nil },
		func() error { return errors.Join(w.KillAgent(t.Context()), w.StartAgent()) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		waitReady(t, w.Node)
		if round > 0 {
			w.apply(t, denies)
		}
		for _, f := range w.flows(usual) {
			if denied(f) && w.try(t, []flow{f})[0] {
				t.Errorf("round %d: %s is answered", round, f)
			}
		}
		w.compare(t, usual, func(f flow) bool { return !denied(f) })
	}
}
