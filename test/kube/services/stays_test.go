package services_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
	"github.com/waggle-net/waggle/test/kube/servicechecks"
)

// stays holds servers that run for the whole test and are also clients: one on node a, two and three on node b.
type stays struct {
	*world
	one, two, three []string // pod addresses, IPv4 first
}

func newStays(t *testing.T, w *world) *stays {
	t.Helper()
	on := map[string]*kube.Node{"one": w.A, "two": w.B, "three": w.B}
	for name, n := range on {
		pod := kube.Server(name, n)
		pod.Labels["stays"] = "true"
		if err := w.CreatePod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	ips := map[string][]string{}
	for name := range on {
		if err := w.WaitPodReady(t.Context(), "default/"+name); err != nil {
			t.Fatal(err)
		}
		var err error
		if ips[name], err = w.PodIPs(t.Context(), "default/"+name); err != nil || len(ips[name]) != 2 {
			t.Fatalf("the pod %s has the addresses %v: %v", name, ips[name], err)
		}
	}
	return &stays{w, ips["one"], ips["two"], ips["three"]}
}

// ranges tests that outside clients reach the load balancer's addresses only from its source ranges; the ranges do not apply to the node port.
func ranges(t *testing.T, s *stays) {
	const ipv4, ipv6 = "203.0.113.11", "2001:db8:113::11"
	s.Service(t, "ranges", "LoadBalancer", 84, "app: two", `loadBalancerSourceRanges: [192.0.2.0/30, "2001:db8:2::/126"]`)
	s.Balance(t, "ranges", "VIP", ipv4, ipv6)
	s.RouteTo(t, s.B, ipv4, ipv6)
	balanced := kube.BothTargets("80", ipv4, ipv6)
	s.CheckReplies(t, s.FromOutside(t), "two", kube.ServerAddresses(), balanced...)
	for _, change := range []struct {
		ranges string
		inside bool
	}{{`["192.0.2.2/31", "2001:db8:2::2/127"]`, false}, {`["198.51.100.0/24", "2001:db8:2::1/128", "192.0.2.1/32"]`, true}} {
		s.sourceRanges(t, change.ranges)
		if change.inside {
			s.CheckReplies(t, s.FromOutside(t), "two", kube.ServerAddresses(), balanced...)
		} else if err := s.WaitFor(t.Context(), "silence", func() error { return kube.Silent(s.FromOutside(t), balanced...) }); err != nil {
			t.Error(err)
		}
		s.CheckReplies(t, s.FromOutside(t), "two", kube.ServerAddresses(), kube.BothTargets("30084", s.B.IPv4, s.B.IPv6)...)
	}
	s.deniedRanges(t, balanced)
}

// external tests external IPs of a Service whose route leads to a node without the server.
func external(t *testing.T, s *stays) {
	const ipv4, ipv6 = "203.0.113.12", "2001:db8:113::12"
	s.Service(t, "external", "ClusterIP", 93, "app: two", fmt.Sprintf("externalIPs: [%q, %q]", ipv4, ipv6))
	s.RouteTo(t, s.A, ipv4, ipv6)
	s.CheckReplies(t, s.FromOutside(t), "two", []string{s.A.IPv4, s.A.IPv6}, kube.BothTargets("80", ipv4, ipv6)...)
	s.CheckReplies(t, s.FromPod(t, "one"), "two", s.one, kube.BothTargets("80", ipv4, ipv6)...)
}

// notPermitted matches the immediate error of a node's process if no backend on the node is eligible.
var notPermitted = regexp.MustCompile(`: operation not permitted`)

// near tests internalTrafficPolicy Local: only clients on the server's node reach the server.
func near(t *testing.T, s *stays) {
	cluster := s.Service(t, "near", "ClusterIP", 85, "app: two", "internalTrafficPolicy: Local")
	targets := kube.BothTargets("80", cluster...)
	s.CheckReplies(t, s.FromPod(t, "three"), "two", s.three, targets...)
	s.Known(t, s.A, targets...)
	if err := s.WaitFor(t.Context(), "silence for a pod", func() error { return kube.Silent(s.FromPod(t, "one"), targets...) }); err != nil {
		t.Error(err)
	}
	if err := kube.Fails(notPermitted, s.FromNode(t, s.A), targets...); err != nil {
		t.Error(err)
	}
}

// hairpin tests a server that connects to itself through its Service.
func hairpin(t *testing.T, s *stays) {
	cluster := s.Service(t, "hairpin", "NodePort", 79, "app: two", "")
	s.CheckReplies(t, s.FromPod(t, "two"), "two", s.two, append(kube.BothTargets("80", cluster...), kube.BothTargets("30079", s.B.IPv4, s.B.IPv6)...)...)
}

// hostNetwork tests a server that is a process of node b.
func hostNetwork(t *testing.T, s *stays) {
	cluster := s.Service(t, "host", "NodePort", 78, "app: host", "")
	pod := kube.Server("host", s.B)
	pod.HostNet = true
	if err := s.RunPod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	inside := kube.BothTargets("80", cluster...)
	s.CheckReplies(t, s.FromPod(t, "one"), s.B.Name, s.one, inside...)
	s.CheckReplies(t, s.FromNode(t, s.A), s.B.Name, []string{s.A.IPv4, s.A.IPv6}, inside...)
	s.CheckReplies(t, s.FromOutside(t), s.B.Name, kube.ServerAddresses(), kube.BothTargets("30078", s.B.IPv4, s.B.IPv6)...)
	s.CheckReplies(t, s.FromOutside(t), s.B.Name, []string{s.A.IPv4, s.A.IPv6}, kube.BothTargets("30078", s.A.IPv4, s.A.IPv6)...)
	// A UDP server that listens on all addresses of a machine replies from the address nearest to the client, which is not the Service's. So only TCP works.
	s.CheckReplies(t, s.FromPod(t, "three"), s.B.Name, s.three, kube.Targets("tcp", "80", cluster...)...)
}

const named = `
apiVersion: v1
kind: Service
metadata: {name: headless}
spec:
  clusterIP: None
  selector: {stays: "true"}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec:
  type: ExternalName
  externalName: www.example.org
  ports: [{port: 80}]
`

// withoutAddress tests Services without a cluster IP: a headless one, an ExternalName, and one that is changed to an ExternalName.
func withoutAddress(t *testing.T, s *stays) {
	s.ApplyManifest(t, named)
	// A node that knows the later Service has processed the earlier ones.
	cluster := s.Service(t, "renamed", "ClusterIP", 91, `stays: "true"`, "")
	s.Known(t, s.A, kube.BothTargets("80", cluster...)...)
	s.Known(t, s.B, kube.BothTargets("80", cluster...)...)
	if err := s.MergePatch(t.Context(), servicechecks.ServicePath("renamed"), `{"spec": {"type": "ExternalName", "externalName": "www.example.org"}}`); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitFor(t.Context(), "names alone", func() error { return errors.Join(s.nameless(t, s.A), s.nameless(t, s.B)) }); err != nil {
		t.Error(err)
	}
}

// nameless returns nil if a node serves nothing for Services without a cluster IP.
func (s *stays) nameless(t *testing.T, n *kube.Node) (failed error) {
	for _, args := range [][]string{{"service", "list"}, {"bpf", "lb", "list"}, {"db", "show", "services"}, {"db", "show", "frontends"}} {
		out, err := n.Waggle(t.Context(), args...)
		failed = errors.Join(failed, err)
		if !strings.Contains(out, "default/web") {
			failed = errors.Join(failed, fmt.Errorf("%v of %s: no Service that has an address: %s", args, n.Name, out))
		}
		for _, name := range []string{"default/headless", "default/alias", "default/renamed", " 10.96.0.91", "[fd00:10:96::91]"} {
			if strings.Contains(out, name) {
				failed = errors.Join(failed, fmt.Errorf("%v of %s has %s: %s", args, n.Name, name, out))
			}
		}
	}
	return failed
}
