package services_test

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// pod returns a Requester in a pod that runs the program talk.
func (w *world) pod(t *testing.T, name string) kube.Requester {
	return w.PodRequester(t.Context(), name)
}

// node returns a Requester that is a process of the node.
func (w *world) node(t *testing.T, n *kube.Node) kube.Requester { return n.Requester(t.Context()) }

// outside returns a Requester outside all nodes.
func (w *world) outside(t *testing.T) kube.Requester { return w.OutsideRequester(t.Context()) }

// answers waits until a server answers all targets and reports the client address of the target's family.
func (w *world) answers(t *testing.T, from kube.Requester, server string, clients []string, targets ...string) {
	t.Helper()
	var want []string
	for _, target := range targets {
		client := clients[0]
		if addressOf(target).Addr().Is6() {
			client = clients[1]
		}
		want = append(want, server+" 8080 "+client)
	}
	if err := w.WaitAnswers(t.Context(), from, want, targets...); err != nil {
		t.Error(err)
	}
}

// refusal returns nil if all targets reject the requests.
func refusal(from kube.Requester, targets ...string) error {
	return kube.Fails(rejectedPattern, from, targets...)
}

var (
	rejectedPattern = regexp.MustCompile(`: connection refused`)
	// notPermitted matches the immediate error of a node's process if no backend on the node is eligible.
	notPermitted = regexp.MustCompile(`: operation not permitted`)
)

// known waits until the maps of a node contain targets.
func (w *world) known(t *testing.T, n *kube.Node, targets ...string) {
	t.Helper()
	if err := w.WaitFor(t.Context(), "the maps of "+n.Name, func() error {
		out, err := n.Waggle(t.Context(), "bpf", "lb", "list", "--frontends")
		for _, target := range targets {
			if at := frontend(target); err == nil && !strings.Contains(out, " "+at+" ") {
				err = fmt.Errorf("no %s: %s", at, out)
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

// lead adds routes on the router to a node for addresses that no node has.
func (w *world) lead(t *testing.T, n *kube.Node, ipv4, ipv6 string) {
	t.Helper()
	if err := errors.Join(w.Route(ipv4+"/32", n), w.Route(ipv6+"/128", n)); err != nil {
		t.Fatal(err)
	}
}

// balance sets the load balancer addresses of a Service, as a load balancer's controller does.
func (w *world) balance(t *testing.T, name, ipv4, ipv6 string) {
	t.Helper()
	if err := w.MergePatch(t.Context(), servicePath(name)+"/status",
		fmt.Sprintf(`{"status": {"loadBalancer": {"ingress": [{"ip": %q}, {"ip": %q}]}}}`, ipv4, ipv6)); err != nil {
		t.Fatal(err)
	}
}

func servicePath(name string) string { return "/api/v1/namespaces/default/services/" + name }
