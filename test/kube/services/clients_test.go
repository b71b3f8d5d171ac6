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
		c.AddPod(t.Context(), kube.Pod{Name: "client", Node: w.A.Name}, inside...),
		// The two paths to a server need different pods: a socket on one path could have the same port as a socket on the other path.
		c.AddPod(t.Context(), kube.Pod{Name: "client-of-nodes", Node: w.A.Name},
			append(kube.Targets("tcp", webPort, w.B.IPv4, w.B.IPv6), kube.Targets("udp", timePort, w.B.IPv4)...)...),
		c.AddNode(w.A, slices.Concat(inside, kube.Targets("tcp", webPort, "127.0.0.1", w.A.IPv4, w.A.IPv6))...),
		c.AddOutside(t, append(kube.Targets("tcp", webPort, w.A.IPv4, w.A.IPv6, w.B.IPv4, w.B.IPv6), kube.Targets("udp", timePort, w.A.IPv4, w.B.IPv6)...)...),
	); err != nil {
		t.Fatal(err)
	}
	return &clients{w, c}
}
