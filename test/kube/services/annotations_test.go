package services_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
	"github.com/waggle-net/waggle/test/kube/servicechecks"
)

// briefly is the flag of requests that must get no answer.
var briefly = []string{"-within", "2s"}

// annotate sets annotations of a Service, which are fields of a JSON object.
func (w *world) annotate(t *testing.T, name, annotations string) {
	t.Helper()
	if err := w.MergePatch(t.Context(), servicechecks.ServicePath(name), `{"metadata": {"annotations": {`+annotations+`}}}`); err != nil {
		t.Fatal(err)
	}
}

// problem waits until a node reports problems of a Service that contain all texts.
func (w *world) problem(t *testing.T, n *kube.Node, name string, texts ...string) {
	t.Helper()
	if err := w.WaitFor(t.Context(), n.Name+" to report problems of "+name, func() error {
		out, err := n.Waggle(t.Context(), "db", "show", "services", "-o", "json")
		if err != nil {
			return err
		}
		var all []struct {
			Name     string
			Problems []string
		}
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			return err
		}
		for _, row := range all {
			if row.Name == "default/"+name {
				return containsAll(strings.Join(row.Problems, "; "), texts)
			}
		}
		return fmt.Errorf("no row of default/%s", name)
	}); err != nil {
		t.Error(err)
	}
}

func containsAll(text string, parts []string) error {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return fmt.Errorf("no %q in %q", part, text)
		}
	}
	return nil
}

// annotated tests annotations: a Service is served on the selected node alone, and at addresses of the selected kind alone, and annotations without effect are
// reported by nodes and in one Event.
func annotated(t *testing.T, s *stays) {
	cluster := kube.BothTargets("80", s.Service(t, "annotated", "NodePort", 94, "app: two", "")...)
	onA, onB := kube.BothTargets("30094", s.A.IPv4, s.A.IPv6), kube.BothTargets("30094", s.B.IPv4, s.B.IPv6)
	s.CheckReplies(t, s.FromOutside(t), "two", []string{s.A.IPv4, s.A.IPv6}, onA...)
	s.annotate(t, "annotated", fmt.Sprintf(`"service.cilium.io/node-selector": "kubernetes.io/hostname=%s", "service.cilium.io/forwarding-mode": "dsr",
		"service.cilium.io/global": "true"`, s.B.Name))
	s.Unknown(t, s.A, onA...)
	s.RequireRejected(t, s.FromOutside(t), "30094", s.A.IPv4, s.A.IPv6)
	s.CheckReplies(t, s.FromOutside(t), "two", kube.ServerAddresses(), onB...)
	texts := []string{`annotation service.cilium.io/forwarding-mode="dsr"`, "annotation service.cilium.io/global: not supported"}
	s.problem(t, s.B, "annotated", texts...)
	s.event(t, "annotated", texts...)
	s.annotate(t, "annotated", `"service.cilium.io/node-selector": null`)
	s.CheckReplies(t, s.FromOutside(t), "two", []string{s.A.IPv4, s.A.IPv6}, onA...)
	s.Known(t, s.A, cluster...)

	s.annotate(t, "annotated", `"service.cilium.io/type": "NodePort"`)
	s.Unknown(t, s.A, cluster...)
	s.Unknown(t, s.B, cluster...)
	s.CheckReplies(t, s.FromOutside(t), "two", []string{s.A.IPv4, s.A.IPv6}, onA...)
	s.annotate(t, "annotated", `"service.cilium.io/type": "ClusterIP"`)
	s.Unknown(t, s.A, onA...)
	s.CheckReplies(t, s.FromPod(t, "one"), "two", s.one, cluster...)
}

// event waits for an Event on a Service whose message contains all texts.
func (w *world) event(t *testing.T, name string, texts ...string) {
	t.Helper()
	if err := w.WaitFor(t.Context(), "an Event on "+name, func() error {
		var list struct {
			Items []struct {
				Type, Message  string
				InvolvedObject struct{ Kind, Name string }
			}
		}
		if err := w.GetObject(t.Context(), "/api/v1/namespaces/default/events?fieldSelector=reason%3DAnnotationWithoutEffect", &list); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Type == "Warning" && e.InvolvedObject.Kind == "Service" && e.InvolvedObject.Name == name {
				return containsAll(e.Message, texts)
			}
		}
		return fmt.Errorf("the Events are %+v", list.Items)
	}); err != nil {
		t.Error(err)
	}
}

// deniedRanges tests that source ranges name the denied clients with an annotation. Afterwards the Service "ranges" has it.
func (s *stays) deniedRanges(t *testing.T, balanced []string) {
	t.Helper()
	s.annotate(t, "ranges", `"service.cilium.io/src-ranges-policy": "deny"`)
	s.sourceRanges(t, `["192.0.2.0/30", "2001:db8:2::/126"]`)
	if err := s.WaitFor(t.Context(), "silence", func() error { return kube.Silent(s.FromOutside(t, briefly...), balanced...) }); err != nil {
		t.Error(err)
	}
	s.sourceRanges(t, `["198.51.100.0/24", "2001:db8:51::/64"]`)
	s.CheckReplies(t, s.FromOutside(t), "two", kube.ServerAddresses(), balanced...)
}

// sourceRanges sets the source ranges of the Service "ranges".
func (s *stays) sourceRanges(t *testing.T, ranges string) {
	t.Helper()
	if err := s.MergePatch(t.Context(), servicechecks.ServicePath("ranges"), `{"spec": {"loadBalancerSourceRanges": `+ranges+`}}`); err != nil {
		t.Fatal(err)
	}
}

// nodeAddress tests external IPs that are addresses of node A: node A serves them for all clients, and node B reports that it does not.
func nodeAddress(t *testing.T, s *stays) {
	s.Service(t, "node-address", "ClusterIP", 95, "app: two", fmt.Sprintf("externalIPs: [%q, %q]", s.A.IPv4, s.A.IPv6))
	targets := kube.BothTargets("80", s.A.IPv4, s.A.IPv6)
	s.CheckReplies(t, s.FromOutside(t), "two", []string{s.A.IPv4, s.A.IPv6}, targets...)
	s.CheckReplies(t, s.FromPod(t, "one"), "two", s.one, targets...)
	s.problem(t, s.B, "node-address", "ExternalIPs "+s.A.IPv4+": is an address of node "+s.A.Name, "ExternalIPs "+s.A.IPv6+": is an address of node "+s.A.Name)
	s.Unknown(t, s.B, targets...)
}

// proxied tests addresses of a load balancer that terminates connections itself (ipMode Proxy): nodes send packets to the load balancer, which is a process
// outside the nodes, and do not serve the addresses.
func proxied(t *testing.T, s *stays) {
	const ipv4, ipv6 = "203.0.113.14", "2001:db8:113::14"
	for _, address := range []string{ipv4 + "/32", ipv6 + "/128"} {
		if _, err := s.RunOutside(t.Context(), "ip", "address", "add", address, "dev", "lo"); err != nil {
			t.Fatal(err)
		}
	}
	balancer, err := s.StartOutside("balancer", s.A.Tool("kube/talk"), "serve", "80")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := balancer.Kill(); err != nil {
			t.Error(err)
		}
	})
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	s.Service(t, "proxied", "LoadBalancer", 96, "app: two", "")
	// The server outside would reply to datagrams from another address, so only TCP works there.
	targets := kube.Targets("tcp", "80", ipv4, ipv6)
	s.Balance(t, "proxied", "VIP", ipv4, ipv6)
	s.CheckReplies(t, s.FromPod(t, "one"), "two", s.one, targets...)
	s.Balance(t, "proxied", "Proxy", ipv4, ipv6)
	s.Unknown(t, s.A, targets...)
	if err := s.WaitReplies(t.Context(), s.FromPod(t, "one"), []string{machine + " 80 " + s.A.IPv4, machine + " 80 " + s.A.IPv6}, targets...); err != nil {
		t.Error(err)
	}
	s.CheckReplies(t, s.FromOutside(t), "two", kube.ServerAddresses(), kube.BothTargets("30096", s.B.IPv4, s.B.IPv6)...)
}
