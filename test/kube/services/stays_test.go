package services_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// stays holds servers that run for the whole test and are also clients: one on node a, two and three on node b.
type stays struct {
	*world
	one, two, three []string // pod addresses, IPv4 first
}

func newStays(t *testing.T, w *world) *stays {
	t.Helper()
	on := map[string]*kube.Node{"one": w.a, "two": w.b, "three": w.b}
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

// service creates a dual-stack Service for the pods with a label and returns its addresses. The addresses end with number, and so does the node port, if any.
// The ports are 80 of TCP and UDP. The fields in more are added to the spec.
func (w *world) service(t *testing.T, name, kind string, number int, label, more string) (addresses []string) {
	t.Helper()
	nodePort := 0
	if kind != "ClusterIP" {
		nodePort = 30000 + number
	}
	addresses = []string{fmt.Sprint("10.96.0.", number), fmt.Sprint("fd00:10:96::", number)}
	w.apply(t, `
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec:
  type: %[2]s
  selector: {%[3]s}
  ipFamilyPolicy: RequireDualStack
  clusterIP: %[4]q
  clusterIPs: [%[4]q, %[5]q]
  ports:
    - {name: tcp, port: 80, targetPort: 8080, nodePort: %[6]d}
    - {name: udp, port: 80, protocol: UDP, targetPort: 8080, nodePort: %[6]d}
  %[7]s
`, name, kind, label, addresses[0], addresses[1], nodePort, more)
	return addresses
}

// affinity tests that a client reaches the same server in all connections to one address, regardless of the protocol.
func affinity(t *testing.T, s *stays) {
	cluster := s.service(t, "affinity", "NodePort", 83, `stays: "true"`, "sessionAffinity: ClientIP")
	inside, nodes := kube.BothTargets("80", cluster...), kube.BothTargets("30083", s.a.IPv4, s.a.IPv6, s.b.IPv4, s.b.IPv6)
	served := map[string]bool{}
	for _, client := range []struct {
		who     string
		from    kube.Requester
		targets []string
	}{{"a pod", s.pod(t, "one"), inside}, {"another pod", s.pod(t, "three"), inside}, {"a node", s.node(t, s.a), inside}, {"outside", s.outside(t), nodes}} {
		request := func(targets []string) (answers []string) {
			if err := s.WaitFor(t.Context(), "answers for "+client.who, func() (err error) { answers, err = client.from(targets...); return err }); err != nil {
				t.Fatal(err)
			}
			return answers
		}
		// Each of several concurrent requests can be the first one.
		first := request(client.targets)
		const questions = 10
		var again []string
		for _, target := range client.targets {
			again = append(again, slices.Repeat([]string{target}, questions)...)
		}
		for i, answer := range request(again) {
			had, _, _ := strings.Cut(first[i/questions], " ")
			if now, _, _ := strings.Cut(answer, " "); now != had {
				t.Errorf("%s came to %s and then to %s by %s", client.who, had, now, again[i])
			}
			served[had] = true
		}
	}
	if len(served) < 2 {
		t.Errorf("all clients came to %v", served)
	}
}

// ranges tests that outside clients reach the load balancer's addresses only from its source ranges; the ranges do not apply to the node port.
func ranges(t *testing.T, s *stays) {
	const ipv4, ipv6 = "203.0.113.11", "2001:db8:113::11"
	s.service(t, "ranges", "LoadBalancer", 84, "app: two", `loadBalancerSourceRanges: [192.0.2.0/30, "2001:db8:2::/126"]`)
	s.balance(t, "ranges", ipv4, ipv6)
	s.lead(t, s.b, ipv4, ipv6)
	balanced := kube.BothTargets("80", ipv4, ipv6)
	s.answers(t, s.outside(t), "two", kube.ServerAddresses(), balanced...)
	for _, change := range []struct {
		ranges string
		inside bool
	}{{`["192.0.2.2/31", "2001:db8:2::2/127"]`, false}, {`["198.51.100.0/24", "2001:db8:2::1/128", "192.0.2.1/32"]`, true}} {
		if err := s.MergePatch(t.Context(), servicePath("ranges"), `{"spec": {"loadBalancerSourceRanges": `+change.ranges+`}}`); err != nil {
			t.Fatal(err)
		}
		if change.inside {
			s.answers(t, s.outside(t), "two", kube.ServerAddresses(), balanced...)
		} else if err := s.WaitFor(t.Context(), "silence", func() error { return kube.Silent(s.outside(t), balanced...) }); err != nil {
			t.Error(err)
		}
		s.answers(t, s.outside(t), "two", kube.ServerAddresses(), kube.BothTargets("30084", s.b.IPv4, s.b.IPv6)...)
	}
}

// external tests external IPs of a Service whose route leads to a node without the server.
func external(t *testing.T, s *stays) {
	const ipv4, ipv6 = "203.0.113.12", "2001:db8:113::12"
	s.service(t, "external", "ClusterIP", 93, "app: two", fmt.Sprintf("externalIPs: [%q, %q]", ipv4, ipv6))
	s.lead(t, s.a, ipv4, ipv6)
	s.answers(t, s.outside(t), "two", []string{s.a.IPv4, s.a.IPv6}, kube.BothTargets("80", ipv4, ipv6)...)
	s.answers(t, s.pod(t, "one"), "two", s.one, kube.BothTargets("80", ipv4, ipv6)...)
}

// near tests internalTrafficPolicy Local: only clients on the server's node reach the server.
func near(t *testing.T, s *stays) {
	cluster := s.service(t, "near", "ClusterIP", 85, "app: two", "internalTrafficPolicy: Local")
	targets := kube.BothTargets("80", cluster...)
	s.answers(t, s.pod(t, "three"), "two", s.three, targets...)
	s.known(t, s.a, targets...)
	if err := s.WaitFor(t.Context(), "silence for a pod", func() error { return kube.Silent(s.pod(t, "one"), targets...) }); err != nil {
		t.Error(err)
	}
	if err := kube.Fails(notPermitted, s.node(t, s.a), targets...); err != nil {
		t.Error(err)
	}
}

// hairpin tests a server that connects to itself through its Service.
func hairpin(t *testing.T, s *stays) {
	cluster := s.service(t, "hairpin", "NodePort", 79, "app: two", "")
	s.answers(t, s.pod(t, "two"), "two", s.two, append(kube.BothTargets("80", cluster...), kube.BothTargets("30079", s.b.IPv4, s.b.IPv6)...)...)
}

// hostNetwork tests a server that is a process of node b.
func hostNetwork(t *testing.T, s *stays) {
	cluster := s.service(t, "host", "NodePort", 78, "app: host", "")
	pod := kube.Server("host", s.b)
	pod.HostNet = true
	if err := s.RunPod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	inside := kube.BothTargets("80", cluster...)
	s.answers(t, s.pod(t, "one"), s.b.Name, s.one, inside...)
	s.answers(t, s.node(t, s.a), s.b.Name, []string{s.a.IPv4, s.a.IPv6}, inside...)
	s.answers(t, s.outside(t), s.b.Name, kube.ServerAddresses(), kube.BothTargets("30078", s.b.IPv4, s.b.IPv6)...)
	s.answers(t, s.outside(t), s.b.Name, []string{s.a.IPv4, s.a.IPv6}, kube.BothTargets("30078", s.a.IPv4, s.a.IPv6)...)
	// A UDP server that listens on all addresses of a machine replies from the address nearest to the client, which is not the Service's. So only TCP works.
	s.answers(t, s.pod(t, "three"), s.b.Name, s.three, kube.Targets("tcp", "80", cluster...)...)
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
	s.apply(t, named)
	// A node that knows the later Service has processed the earlier ones.
	cluster := s.service(t, "renamed", "ClusterIP", 91, `stays: "true"`, "")
	s.known(t, s.a, kube.BothTargets("80", cluster...)...)
	s.known(t, s.b, kube.BothTargets("80", cluster...)...)
	if err := s.MergePatch(t.Context(), servicePath("renamed"), `{"spec": {"type": "ExternalName", "externalName": "www.example.org"}}`); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitFor(t.Context(), "names alone", func() error { return errors.Join(s.nameless(t, s.a), s.nameless(t, s.b)) }); err != nil {
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
