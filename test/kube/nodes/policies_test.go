package nodes_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// briefly is the time for which the test observes a connection that must not succeed.
const briefly = "2s"

const guardedPolicy = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/guarded"

// policies creates the policies of testdata/policies.yaml before the pods that they select, so that not even a first packet may pass. The guarded server is
// on the second node. Its denied clients run until the end of the test.
func (w *world) policies(t *testing.T) {
	if err := w.Apply(t.Context(), policies); err != nil {
		t.Fatal(err)
	}
	if err := w.WaitFor(t.Context(), "the agents to have the policies", func() (err error) {
		for _, n := range w.Nodes {
			for _, policy := range []string{"default/guarded", "default/restrained"} {
				err = errors.Join(err, w.shown(t, n, policy, "policy", "list"))
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w.serve(t, kube.Server("guarded", w.two))
	guarded := append(direct(w.ips["guarded"]), kube.Targets("udp", "8080", w.ips["guarded"]...)...)
	if err := errors.Join(
		w.allowed.AddPod(t.Context(), kube.Pod{Name: "allowed", Node: w.one.Name, Labels: map[string]string{"access": "yes"}}, guarded...),
		w.denied.AddPod(t.Context(), kube.Pod{Name: "denied", Node: w.one.Name, Labels: map[string]string{"access": "no"}}, guarded...),
		w.denied.AddNode(w.one, guarded...),
	); err != nil {
		t.Fatal(err)
	}
	for _, clients := range []*kube.Clients{w.allowed, w.denied} {
		if _, err := clients.WaitCounts(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.allowed.Until(t, "answers", kube.AnyServer)
	w.stillDenied(t)
	w.egress(t)
	w.revoked(t)
}

// egress creates a pod that may send only to the server on the second node.
func (w *world) egress(t *testing.T) {
	t.Helper()
	w.serve(t, kube.Server("restrained", w.one))
	w.request(t, w.PodRequester(t.Context(), "restrained"), "two", w.ips["restrained"], kube.BothTargets("8080", w.ips["two"]...)...)
	if err := kube.Silent(w.PodRequester(t.Context(), "restrained", "-within", briefly), kube.BothTargets("8080", w.ips["three"]...)...); err != nil {
		t.Error(err)
	}
}

// revoked revokes the access of the allowed client, which closes its open connections, and restores it.
func (w *world) revoked(t *testing.T) {
	t.Helper()
	w.guard(t, "nobody", "DENIED")
	if err := kube.Silent(w.PodRequester(t.Context(), "allowed", "-within", briefly), kube.BothTargets("8080", w.ips["guarded"]...)...); err != nil {
		t.Errorf("once the policy denies it: %v", err)
	}
	w.stopped(t, w.allowed)
	w.guard(t, "yes", "ALLOWED")
	w.allowed.Until(t, "answers again", kube.AnyServer)
}

// guard allows pods with a label to connect to the guarded server, and waits until the server's node reports the verdict for the allowed client.
func (w *world) guard(t *testing.T, access, verdict string) {
	t.Helper()
	if err := w.MergePatch(t.Context(), guardedPolicy, fmt.Sprintf(`{"spec": {"ingress": [{"from": [{"podSelector": {"matchLabels": {"access": %q}}}]}]}}`, access)); err != nil {
		t.Fatal(err)
	}
	if err := w.WaitFor(t.Context(), "the policy in the kernel", func() error {
		out, err := w.two.Waggle(t.Context(), "policy", "explain", "--from", "default/allowed", "--to", "default/guarded", "--port", "8080/TCP")
		if err == nil && (!strings.HasPrefix(out, verdict) || !strings.Contains(out, "kernel: agrees")) {
			err = fmt.Errorf("want %s: %s", verdict, out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// questions is the number of unanswered requests per target that proves a denial.
const questions = 2

// stillDenied checks that the denied clients keep sending requests and never received an answer. The third node and its pod are denied as well.
func (w *world) stillDenied(t *testing.T) {
	t.Helper()
	before, err := w.denied.Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var now map[string]kube.Count
	if err := w.WaitFor(t.Context(), "questions", func() (err error) {
		if now, err = w.denied.Counts(t.Context()); err != nil {
			return err
		}
		return requestsCounted(before, now)
	}); err != nil {
		t.Fatal(err)
	}
	for name, one := range now {
		if one.Good > 0 {
			t.Errorf("%s: %d of %d questions were answered: %v", name, one.Good, one.Asked, one.Answers)
		}
	}
	for _, from := range []kube.Requester{w.PodRequester(t.Context(), "three", "-within", briefly), w.three.Requester(t.Context(), "-within", briefly)} {
		if err := kube.Silent(from, kube.BothTargets("8080", w.ips["guarded"]...)...); err != nil {
			t.Error(err)
		}
	}
}

// stopped waits until clients receive no more answers. An increase replaces the base counts and the check is repeated, since clients print counts only twice
// a second.
func (w *world) stopped(t *testing.T, clients *kube.Clients) {
	t.Helper()
	before, err := clients.Counts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WaitFor(t.Context(), "no answers", func() error {
		now, err := clients.Counts(t.Context())
		if err != nil {
			return err
		}
		for name, one := range now {
			if one.Good > before[name].Good {
				before = now
				return fmt.Errorf("%s: answers", name)
			}
		}
		return requestsCounted(before, now)
	}); err != nil {
		t.Fatal(err)
	}
}

// requestsCounted returns nil if each target has received the required number of requests.
func requestsCounted(before, now map[string]kube.Count) (err error) {
	for name, one := range now {
		if n := one.Asked - before[name].Asked; n < questions {
			err = errors.Join(err, fmt.Errorf("%s: %d questions", name, n))
		}
	}
	return err
}

// shown waits until the output of a command on a node contains a text.
func (w *world) shown(t *testing.T, n *kube.Node, text string, command ...string) error {
	out, err := n.Waggle(t.Context(), command...)
	if err == nil && !strings.Contains(out, text) {
		err = fmt.Errorf("%v of %s does not say %s: %s", command, n.Name, text, out)
	}
	return err
}
