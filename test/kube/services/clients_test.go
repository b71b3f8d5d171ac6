package services_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// clients are programs that send requests continuously to the Services of testdata/web.yaml: in a pod, on a node and outside.
type clients struct {
	*world
	*kube.Clients
}

func newClients(t *testing.T, w *world) *clients {
	t.Helper()
	inside := slices.Concat(kube.Targets("tcp", "80", webIPv4, webIPv6), kube.Targets("udp", "80", timeIPv4, timeIPv6),
		kube.Targets("udp-connected", "80", timeIPv4, timeIPv6))
	c := w.NewClients("client")
	if err := errors.Join(
		c.AddPod(t.Context(), kube.Pod{Name: "client", Node: w.a.Name}, inside...),
		// The two paths to a server need different pods: a socket on one path could have the same port as a socket on the other path.
		c.AddPod(t.Context(), kube.Pod{Name: "client-of-nodes", Node: w.a.Name},
			append(kube.Targets("tcp", webPort, w.b.IPv4, w.b.IPv6), kube.Targets("udp", timePort, w.b.IPv4)...)...),
		c.AddNode(w.a, slices.Concat(inside, kube.Targets("tcp", webPort, "127.0.0.1", w.a.IPv4, w.a.IPv6))...),
		c.AddOutside(t, append(kube.Targets("tcp", webPort, w.a.IPv4, w.a.IPv6, w.b.IPv4, w.b.IPv6), kube.Targets("udp", timePort, w.a.IPv4, w.b.IPv6)...)...),
	); err != nil {
		t.Fatal(err)
	}
	return &clients{w, c}
}
