package nodes_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// briefly is how long a connection that must not come about is watched.
const briefly = "2s"

const guardedPolicy = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/guarded"

// policies has the policies of testdata/policies.yaml before the pods that they are about, so that no first packet may pass. The guarded server is on the
// second node. Its denied clients go on to the end.
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
	w.allowed.Until(t, "answers", kube.Anybody)
	w.stillDenied(t)
	w.egress(t)
	w.revoked(t)
}

// egress has a pod that may send to the server on the second node alone.
func (w *world) egress(t *testing.T) {
	t.Helper()
	w.serve(t, kube.Server("restrained", w.one))
	w.ask(t, w.PodAsker(t.Context(), "restrained"), "two", w.ips["restrained"], kube.BothTargets("8080", w.ips["two"]...)...)
	if err := kube.Silent(w.PodAsker(t.Context(), "restrained", "-within", briefly), kube.BothTargets("8080", w.ips["three"]...)...); err != nil {
		t.Error(err)
	}
}

// revoked takes the access away from the allowed client, whose open connections end, and gives it back.
func (w *world) revoked(t *testing.T) {
	t.Helper()
	w.guard(t, "nobody", "DENIED")
	if err := kube.Silent(w.PodAsker(t.Context(), "allowed", "-within", briefly), kube.BothTargets("8080", w.ips["guarded"]...)...); err != nil {
		t.Errorf("once the policy denies it: %v", err)
	}
	w.stopped(t, w.allowed)
	w.guard(t, "yes", "ALLOWED")
	w.allowed.Until(t, "answers again", kube.Anybody)
}

// guard lets pods with a label connect to the guarded server, and waits until its node says so of the allowed client.
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

// questions are those of a target that show that none is answered.
const questions = 2

// stillDenied holds that the denied clients go on to ask, and never had an answer. The pod of the third node and that node are denied as well.
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
		return asked(before, now)
	}); err != nil {
		t.Fatal(err)
	}
	for name, one := range now {
		if one.Good > 0 {
			t.Errorf("%s: %d of %d questions were answered: %v", name, one.Good, one.Asked, one.Answers)
		}
	}
	for _, from := range []kube.Asker{w.PodAsker(t.Context(), "three", "-within", briefly), w.three.Asker(t.Context(), "-within", briefly)} {
		if err := kube.Silent(from, kube.BothTargets("8080", w.ips["guarded"]...)...); err != nil {
			t.Error(err)
		}
	}
}

// stopped waits until clients have no more answers. The first counts are of before: clients print them twice a second.
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
		return asked(before, now)
	}); err != nil {
		t.Fatal(err)
	}
}

// asked is nil when each target was asked some questions.
func asked(before, now map[string]kube.Count) (err error) {
	for name, one := range now {
		if n := one.Asked - before[name].Asked; n < questions {
			err = errors.Join(err, fmt.Errorf("%s: %d questions", name, n))
		}
	}
	return err
}

// shown wants a command of a node to print a text.
func (w *world) shown(t *testing.T, n *kube.Node, text string, command ...string) error {
	out, err := n.Waggle(t.Context(), command...)
	if err == nil && !strings.Contains(out, text) {
		err = fmt.Errorf("%v of %s does not say %s: %s", command, n.Name, text, out)
	}
	return err
}
