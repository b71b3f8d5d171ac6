// Package servicechecks has checks of Services between two nodes that several test packages run, on clusters with different modes of routing, and the helpers
// of these checks.
package servicechecks

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// World is a cluster with Waggle in which the nodes A and B have the image of the program talk.
type World struct {
	*kube.Cluster
	A, B *kube.Node
}

// FromPod returns a Requester in a pod that runs the program talk.
func (w *World) FromPod(t *testing.T, name string) kube.Requester {
	return w.PodRequester(t.Context(), name)
}

// FromNode returns a Requester that is a process of the node.
func (w *World) FromNode(t *testing.T, n *kube.Node) kube.Requester { return n.Requester(t.Context()) }

// FromOutside returns a Requester outside all nodes. The flags are flags of "talk ask".
func (w *World) FromOutside(t *testing.T, flags ...string) kube.Requester {
	return w.OutsideRequester(t.Context(), flags...)
}

// CheckReplies waits until a server answers all targets and reports the client address of the target's family.
func (w *World) CheckReplies(t *testing.T, from kube.Requester, server string, clients []string, targets ...string) {
	t.Helper()
	var want []string
	for _, target := range targets {
		client := clients[0]
		if addressOf(target).Addr().Is6() {
			client = clients[1]
		}
		want = append(want, server+" 8080 "+client)
	}
	if err := w.WaitReplies(t.Context(), from, want, targets...); err != nil {
		t.Error(err)
	}
}

var rejectedPattern = regexp.MustCompile(`: connection refused`)

// RequireRejected waits until all addresses reject requests. A connected UDP socket reports the ICMP error.
func (w *World) RequireRejected(t *testing.T, from kube.Requester, port string, addresses ...string) {
	t.Helper()
	targets := append(kube.Targets("tcp", port, addresses...), kube.Targets("udp-connected", port, addresses...)...)
	if err := w.WaitFor(t.Context(), "refusals", func() error { return kube.Fails(rejectedPattern, from, targets...) }); err != nil {
		t.Error(err)
	}
}

// Known waits until the maps of a node contain targets.
func (w *World) Known(t *testing.T, n *kube.Node, targets ...string) {
	t.Helper()
	w.waitFrontends(t, n, true, targets)
}

// Unknown waits until the maps of a node contain none of the targets.
func (w *World) Unknown(t *testing.T, n *kube.Node, targets ...string) {
	t.Helper()
	w.waitFrontends(t, n, false, targets)
}

func (w *World) waitFrontends(t *testing.T, n *kube.Node, want bool, targets []string) {
	t.Helper()
	if err := w.WaitFor(t.Context(), "the maps of "+n.Name, func() error {
		out, err := n.Waggle(t.Context(), "bpf", "lb", "list", "--frontends")
		for _, target := range targets {
			if at := frontend(target); err == nil && strings.Contains(out, " "+at+" ") != want {
				err = fmt.Errorf("%s must be there: %t: %s", at, want, out)
			}
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// frontend returns a target in the notation of Waggle's lists.
func frontend(target string) string {
	protocol := "/TCP"
	if strings.HasPrefix(target, "udp") {
		protocol = "/UDP"
	}
	return addressOf(target).String() + protocol
}

func addressOf(target string) netip.AddrPort {
	_, address, _ := strings.Cut(target, "://")
	return netip.MustParseAddrPort(address)
}

// RouteTo adds routes on the router to a node for addresses that no node has.
func (w *World) RouteTo(t *testing.T, n *kube.Node, ipv4, ipv6 string) {
	t.Helper()
	if err := errors.Join(w.Route(ipv4+"/32", n), w.Route(ipv6+"/128", n)); err != nil {
		t.Fatal(err)
	}
}

// Balance sets the load balancer addresses of a Service, as a load balancer's controller does. The mode is "VIP" or "Proxy".
func (w *World) Balance(t *testing.T, name, mode, ipv4, ipv6 string) {
	t.Helper()
	if err := w.MergePatch(t.Context(), ServicePath(name)+"/status",
		fmt.Sprintf(`{"status": {"loadBalancer": {"ingress": [{"ip": %[1]q, "ipMode": %[3]q}, {"ip": %[2]q, "ipMode": %[3]q}]}}}`, ipv4, ipv6, mode)); err != nil {
		t.Fatal(err)
	}
}

// ServicePath returns the path of a Service in namespace default.
func ServicePath(name string) string { return "/api/v1/namespaces/default/services/" + name }

// ApplyManifest applies a manifest that is formatted with args.
func (w *World) ApplyManifest(t *testing.T, manifest string, args ...any) {
	t.Helper()
	if err := w.Apply(t.Context(), fmt.Sprintf(manifest, args...)); err != nil {
		t.Fatal(err)
	}
}

// Service creates a dual-stack Service for the pods with a label and returns its addresses. The addresses end with number, and so does the node port, if any.
// The ports are 80 of TCP and UDP. The fields in more are added to the spec.
func (w *World) Service(t *testing.T, name, kind string, number int, label, more string) (addresses []string) {
	t.Helper()
	nodePort := 0
	if kind != "ClusterIP" {
		nodePort = 30000 + number
	}
	addresses = []string{fmt.Sprint("10.96.0.", number), fmt.Sprint("fd00:10:96::", number)}
	w.ApplyManifest(t, `
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
