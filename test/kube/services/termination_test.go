package services_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// lateServer is a pod that is not ready, or that has a delay before it exits.
const lateServer = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 600
  automountServiceAccountToken: false
  containers:
    - name: main
      image: waggle.local/talk:1
      imagePullPolicy: Never
      command: [/bin/talk, serve, "8080"]
      resources: {requests: {cpu: 20m}}
      %[3]s
`

// unready tests a server that is never ready. One Service publishes it to clients, another one does not.
func unready(t *testing.T, s *stays) {
	published := s.Service(t, "published", "ClusterIP", 86, "app: unready", "publishNotReadyAddresses: true")
	unpublished := s.Service(t, "unpublished", "ClusterIP", 87, "app: unready", "")
	s.ApplyManifest(t, lateServer, "unready", s.B.Name, "readinessProbe: {tcpSocket: {port: 9}, periodSeconds: 1}")
	s.CheckReplies(t, s.FromPod(t, "one"), "unready", s.one, kube.BothTargets("80", published...)...)
	s.RequireRejected(t, s.FromPod(t, "one"), "80", unpublished...)
}

// ending tests a terminating server, which gets traffic only as long as no other server is ready.
func ending(t *testing.T, s *stays) {
	cluster := s.Service(t, "ending", "NodePort", 88, "app: ending", "")
	inside, node := kube.BothTargets("80", cluster...), kube.BothTargets("30088", s.B.IPv4, s.B.IPv6)
	s.ApplyManifest(t, lateServer, "ending", s.B.Name, "lifecycle: {preStop: {sleep: {seconds: 590}}}")
	s.CheckReplies(t, s.FromPod(t, "one"), "ending", s.one, inside...)
	ips, err := s.PodIPs(t.Context(), "default/ending")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), "/api/v1/namespaces/default/pods/ending"); err != nil {
		t.Fatal(err)
	}
	for _, n := range s.Nodes {
		if err := s.WaitFor(t.Context(), n.Name+" to know that the server ends", func() error {
			out, err := n.Waggle(t.Context(), "service", "list")
			for _, ip := range ips {
				if at := net.JoinHostPort(ip, "8080") + " (terminating)"; err == nil && !strings.Contains(out, at) {
					err = fmt.Errorf("no %s: %s", at, out)
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	s.CheckReplies(t, s.FromPod(t, "one"), "ending", s.one, inside...)
	s.CheckReplies(t, s.FromOutside(t), "ending", kube.ServerAddresses(), node...)

	next := kube.Server("next", s.B)
	next.Labels = map[string]string{"app": "ending"}
	if err := s.RunPod(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	s.CheckReplies(t, s.FromPod(t, "one"), "next", s.one, append(append(inside, inside...), inside...)...)
	s.CheckReplies(t, s.FromOutside(t), "next", kube.ServerAddresses(), append(append(node, node...), node...)...)
	// The terminating server still accepts direct connections.
	if got, err := s.FromPod(t, "one")(kube.Targets("tcp", "8080", ips...)...); err != nil {
		t.Errorf("the first server by its own addresses: %q, %v", got, err)
	}
	if err := s.Delete(t.Context(), "/api/v1/namespaces/default/pods/ending?gracePeriodSeconds=0"); err != nil {
		t.Error(err)
	}
}

// masquerade tests that a server outside sees the node's address of a pod's connection, and that pods on the other node see the pod's address.
func masquerade(t *testing.T, s *stays) {
	server, err := s.StartOutside("server", s.A.Tool("kube/talk"), "serve", "8080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Kill(); err != nil {
			t.Error(err)
		}
	})
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	s.CheckReplies(t, s.FromPod(t, "one"), machine, []string{s.A.IPv4, s.A.IPv6}, kube.BothTargets("8080", kube.ServerAddresses()...)...)
	s.CheckReplies(t, s.FromPod(t, "two"), machine, []string{s.B.IPv4, s.B.IPv6}, kube.BothTargets("8080", kube.ServerAddresses()...)...)
	s.CheckReplies(t, s.FromPod(t, "one"), "two", s.one, kube.BothTargets("8080", s.two...)...)
	s.CheckReplies(t, s.FromPod(t, "two"), "one", s.two, kube.BothTargets("8080", s.one...)...)
	// Replies to connections from outside over the router's routes to pods keep the pod's address.
	s.CheckReplies(t, s.FromOutside(t), "one", kube.ServerAddresses(), kube.BothTargets("8080", s.one...)...)
}

// anotherAddress adds addresses to a device of node b and removes them. Node ports must be reachable at the addresses exactly meanwhile.
func anotherAddress(t *testing.T, w *world) {
	const ipv4, ipv6 = "198.51.100.12", "2001:db8:51::12"
	w.RouteTo(t, w.B, ipv4, ipv6)
	command := func(line string) {
		t.Helper()
		if _, err := w.B.Run(t.Context(), strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
	}
	command("ip link add another link eth0 type macvlan")
	command("ip link set another up")
	targets := append(kube.Targets("tcp", webPort, ipv4, ipv6), kube.Targets("udp", timePort, ipv4, ipv6)...)
	for range 2 {
		command("ip addr add " + ipv4 + "/24 dev another")
		command("ip addr add " + ipv6 + "/64 dev another nodad")
		if err := w.WaitFor(t.Context(), "answers", func() error { _, err := w.FromOutside(t)(targets...); return err }); err != nil {
			t.Fatal(err)
		}
		command("ip addr flush dev another scope global")
		w.Unknown(t, w.B, targets...)
	}
}
