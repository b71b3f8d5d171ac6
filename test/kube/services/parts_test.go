package services_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
	"github.com/waggle-net/waggle/test/kube/servicechecks"
)

// lenient makes the API server accept addresses that Go cannot parse, as API servers before Kubernetes 1.36 do.
const lenient = "--feature-gates=StrictIPCIDRValidation=false"

// partialSlices are slices of a Service without a selector. Of the first one no endpoint counts, of the second one only the last endpoint.
const partialSlices = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: partial-headless, labels: {kubernetes.io/service-name: partial, service.kubernetes.io/headless: ""}}
addressType: IPv4
ports: [{name: tcp, port: 8080}, {name: udp, port: 8080, protocol: UDP}]
endpoints: [{addresses: [%[1]q]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: partial-rest, labels: {kubernetes.io/service-name: partial}}
addressType: IPv4
ports: [{name: tcp, port: 8080}, {name: udp, port: 8080, protocol: UDP}]
endpoints: [{addresses: ["010.244.0.9"]}, {addresses: ["239.1.2.3"]}, {addresses: [%[2]q]}]
`

// partialSlice tests slices with addresses that cannot be used, the label of headless Services on a slice and on the Service, and a terminating endpoint whose
// condition serving is null.
func partialSlice(t *testing.T, s *stays) {
	cluster := s.Service(t, "partial", "ClusterIP", 97, "", "")
	s.ApplyManifest(t, partialSlices, s.three[0], s.two[0])
	targets := kube.BothTargets("80", cluster[0])
	// Each request can be answered by any backend.
	s.CheckReplies(t, s.FromPod(t, "one"), "two", s.one, slices.Concat(targets, targets, targets, targets)...)
	s.problem(t, s.A, "partial", "backend 239.1.2.3")
	for _, n := range s.Nodes {
		s.partly(t, n, "endpointslices.discovery.k8s.io", "default/partial-rest", "010.244.0.9")
	}

	headless := func(value string) {
		t.Helper()
		if err := s.MergePatch(t.Context(), servicechecks.ServicePath("partial"), `{"metadata": {"labels": {"service.kubernetes.io/headless": `+value+`}}}`); err != nil {
			t.Fatal(err)
		}
	}
	headless(`""`)
	s.Unknown(t, s.A, targets...)
	headless("null")
	s.CheckReplies(t, s.FromPod(t, "one"), "two", s.one, targets...)

	// No other Service has a backend at this port of the server.
	if err := s.MergePatch(t.Context(), "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/partial-rest", fmt.Sprintf(`{
		"ports": [{"name": "tcp", "port": 8081, "protocol": "TCP"}, {"name": "udp", "port": 8081, "protocol": "UDP"}],
		"endpoints": [{"addresses": [%q], "conditions": {"ready": false, "serving": null, "terminating": true}}]}`, s.three[0])); err != nil {
		t.Fatal(err)
	}
	answer := "three 8081 " + s.one[0]
	if err := s.WaitReplies(t.Context(), s.FromPod(t, "one"), []string{answer, answer}, targets...); err != nil {
		t.Error(err)
	}
}

// partly waits until a node uses an object without the part that a text names.
func (w *world) partly(t *testing.T, n *kube.Node, resource, object, text string) {
	t.Helper()
	if err := w.WaitFor(t.Context(), n.Name+" to report "+object, func() error {
		out, err := n.Waggle(t.Context(), "db", "show", "k8s-rejects", "-o", "json")
		if err != nil {
			return err
		}
		var all []struct {
			Resource, Object, Reason string
			Used                     bool
		}
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			return err
		}
		for _, row := range all {
			if row.Resource == resource && row.Object == object && row.Used && strings.Contains(row.Reason, text) {
				return nil
			}
		}
		return fmt.Errorf("no row about %s: %s", text, out)
	}); err != nil {
		t.Error(err)
	}
}

// partialNodeObject has no label of an operating system, so that no pod of a DaemonSet is created for it.
const partialNodeObject = `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "partial"}, "spec": {"unschedulable": true}, "status": {"addresses": [
	{"type": "Hostname", "address": "Worker_01."}, {"type": "ExternalDNS", "address": ""}, {"type": "VIP", "address": "192.0.2.251"},
	{"type": "InternalIP", "address": "192.0.2.250"}]}}`

// partialNode tests a Node whose addresses include names of any form and one of an unknown type. No machine has the addresses.
func partialNode(t *testing.T, w *world) {
	if _, err := w.Request(t.Context(), "POST", "/api/v1/nodes", []byte(partialNodeObject)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Delete(context.WithoutCancel(t.Context()), "/api/v1/nodes/partial"); err != nil {
			t.Error(err)
		}
	})
	for _, n := range w.Nodes {
		w.partly(t, n, "nodes", "partial", `"VIP"`)
		if err := w.WaitFor(t.Context(), n.Name+" to know the address of the node", func() error {
			return errors.Join(shows(t, n, "k8s-nodes", "partial ", "Hostname=Worker_01.", "InternalIP=192.0.2.250"), shows(t, n, "nodes", "partial ", "InternalIP=192.0.2.250"))
		}); err != nil {
			t.Error(err)
		}
	}
}

// shows returns nil if a table of a node has a line that starts with a text and contains all parts.
func shows(t *testing.T, n *kube.Node, table, start string, parts ...string) error {
	out, err := n.Waggle(t.Context(), "db", "show", table)
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, start) {
			return containsAll(line, parts)
		}
	}
	return fmt.Errorf("no line %q in table %s of %s: %s", start, table, n.Name, out)
}
