package services_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// asker asks targets, all at once, and returns a line for each answer: "SERVER PORT CLIENT". The error has a line for each failure.
type asker func(targets ...string) ([]string, error)

// pod asks from a pod that has the program talk.
func (w *world) pod(t *testing.T, name string) asker {
	return asking(func(args ...string) (string, error) {
		return w.Exec(t.Context(), name, append([]string{"talk"}, args...)...)
	})
}

// node asks as a process of a node.
func (w *world) node(t *testing.T, n *kube.Node) asker {
	return asking(func(args ...string) (string, error) {
		return n.Run(t.Context(), append([]string{n.Tool("kube/talk")}, args...)...)
	})
}

// outside asks from outside.
func (w *world) outside(t *testing.T) asker {
	return asking(func(args ...string) (string, error) {
		return w.RunOutside(t.Context(), append([]string{w.a.Tool("kube/talk")}, args...)...)
	})
}

func asking(talk func(args ...string) (string, error)) asker {
	return func(targets ...string) ([]string, error) {
		out, err := talk(append([]string{"ask"}, targets...)...)
		return strings.FieldsFunc(out, func(r rune) bool { return r == '\n' }), err
	}
}

// answers waits until a server answers all targets, and sees the client under its address of the target's family.
func (w *world) answers(t *testing.T, from asker, server string, clients []string, targets ...string) {
	t.Helper()
	var want []string
	for _, target := range targets {
		client := clients[0]
		if addressOf(target).Addr().Is6() {
			client = clients[1]
		}
		want = append(want, server+" 8080 "+client)
	}
	if err := w.WaitFor(t.Context(), "answers", func() error {
		got, err := from(targets...)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("the answers of %v are %q, want %q", targets, got, want)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// silent is nil when no target answers at all, neither with a connection nor with a refusal.
func silent(from asker, targets ...string) error { return fails(noAnswer, from, targets) }

// refusal is nil when all targets refuse.
func refusal(from asker, targets ...string) error { return fails(refused, from, targets) }

var (
	// noAnswer is what talk says when nothing comes back: a connection that is made and then silent is another thing.
	noAnswer = regexp.MustCompile(`: dial tcp \S+: i/o timeout|: no answer`)
	refused  = regexp.MustCompile(`: connection refused`)
	// notPermitted is what a process of a node is told at once when nobody on the node may answer.
	notPermitted = regexp.MustCompile(`: operation not permitted`)
)

func fails(how *regexp.Regexp, from asker, targets []string) error {
	got, err := from(targets...)
	if err != nil && len(how.FindAllString(err.Error(), -1)) == len(targets) {
		return nil
	}
	return fmt.Errorf("want %q of each target: %q, %w", how, got, err)
}

// known waits until the maps of a node have targets.
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

// frontend is a target as Waggle lists it.
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

// of makes targets out of addresses.
func of(network, port string, addresses ...string) (targets []string) {
	for _, a := range addresses {
		targets = append(targets, network+"://"+net.JoinHostPort(a, port))
	}
	return targets
}

// both makes targets of TCP and of UDP.
func both(port string, addresses ...string) []string {
	return append(of("tcp", port, addresses...), of("udp", port, addresses...)...)
}

// lead makes the router send packets for addresses of no node to one.
func (w *world) lead(t *testing.T, n *kube.Node, ipv4, ipv6 string) {
	t.Helper()
	if err := errors.Join(w.Route(ipv4+"/32", n), w.Route(ipv6+"/128", n)); err != nil {
		t.Fatal(err)
	}
}

// balance gives a Service addresses, as a load balancer's controller does.
func (w *world) balance(t *testing.T, name, ipv4, ipv6 string) {
	t.Helper()
	if err := w.MergePatch(t.Context(), servicePath(name)+"/status",
		fmt.Sprintf(`{"status": {"loadBalancer": {"ingress": [{"ip": %q}, {"ip": %q}]}}}`, ipv4, ipv6)); err != nil {
		t.Fatal(err)
	}
}

func servicePath(name string) string { return "/api/v1/namespaces/default/services/" + name }
