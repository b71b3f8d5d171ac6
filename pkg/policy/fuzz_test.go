package policy_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policytest"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// FuzzFromCilium checks for any text that parsing does not panic, that the model survives JSON, that a namespaced policy selects subjects of its own
// namespace only, and that a rule with a problem allows nothing that the policy without the rule denies. If the problem is a peer that matches nothing, the
// last check removes that peer instead of the rule.
func FuzzFromCilium(f *testing.F) {
	for seed := range uint64(60) {
		for _, p := range policytest.New(seed, policytest.Small).Cilium {
			f.Add(string(p.Spec), string(p.Specs), p.Namespace != "")
		}
	}
	f.Add(`{"endpointSelector":{"matchExpressions":[{"key":"reserved:init","operator":"DoesNotExist"}]},"ingress":[null,5,{"fromEndpoints":null}]}`, "", true)
	f.Add(`{"endpointSelector":{"matchLabels":{"k8s:io.kubernetes.pod.namespace":"green","any:io.kubernetes.pod.namespace":"green"}}}`, `[{},[],null]`, true)
	w := policytest.New(7, policytest.Size{Pods: 8})
	f.Fuzz(func(t *testing.T, spec, specs string, namespaced bool) {
		o := &cilium.Policy{Name: "p", Spec: json.RawMessage(spec), Specs: json.RawMessage(specs)}
		if namespaced {
			o.Namespace = "red"
		}
		p := policy.FromCilium(o, w.Environment)
		survives(t, p)
		staysHome(t, p)
		checkProblemTexts(t, p)
		for _, problem := range p.Problems {
			if strings.HasSuffix(problem.Path, ".k8sServiceSelector") && !strings.Contains(problem.Message, "the rule allows nothing") {
				continue // of one of the Services that a peer stands for; the others count
			}
			edit := dropRule
			if problem.Reason == policy.ReasonAbsent || strings.Contains(problem.Message, "matches no peer") || strings.Contains(problem.Message, "this peer of the rule") {
				edit = dropPeer
			}
			if without, ok := withoutRule(o, problem.Path, edit); ok {
				grantsNoMore(t, w, p, policy.FromCilium(without, w.Environment), problem)
			}
		}
	})
}

// FuzzFromKubernetes checks the same for rows, which are otherwise well formed.
func FuzzFromKubernetes(f *testing.F) {
	for seed := range uint64(60) {
		for _, p := range policytest.New(seed, policytest.Small).Kubernetes {
			text, err := json.Marshal(p)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(text))
		}
	}
	w := policytest.New(7, policytest.Size{Pods: 8})
	f.Fuzz(func(t *testing.T, text string) {
		var o k8s.NetworkPolicy
		if json.Unmarshal([]byte(text), &o) != nil {
			return // not a row
		}
		o.Namespace = "red"
		p := policy.FromKubernetes(&o, w.Environment)
		survives(t, p)
		staysHome(t, p)
		checkProblemTexts(t, p)
		closed := o
		closed.Ingress, closed.Egress = nil, nil
		if o.Invalid != "" {
			grantsNoMore(t, w, p, policy.FromKubernetes(&closed, w.Environment), p.Problems[0])
		}
	})
}

// survives checks that a policy is the same after JSON: an empty list must not become every peer.
func survives(t *testing.T, p *policy.Policy) {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var back policy.Policy
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(&back)
	if err != nil || string(again) != string(text) {
		t.Fatalf("%s\nbecomes\n%s (%v)", text, again, err)
	}
	for i := range p.Parts {
		for k, r := range p.Parts[i].Rules {
			other := back.Parts[i].Rules[k]
			if r.Peers.Any != other.Peers.Any || r.Ports.Any != other.Ports.Any || len(r.Peers.List) != len(other.Peers.List) ||
				!reflect.DeepEqual(r.Ports, other.Ports) {
				t.Fatalf("%+v becomes %+v", r, other)
			}
		}
	}
}

// staysHome checks that a namespaced policy selects only its own pods as subjects.
func staysHome(t *testing.T, p *policy.Policy) {
	t.Helper()
	if p.Ref.Namespace == "" {
		return
	}
	for name, who := range parties() {
		for i := range p.Parts {
			if who.labels["k8s:io.kubernetes.pod.namespace"] != p.Ref.Namespace && p.Parts[i].Subject.Matches(who.labels) {
				t.Fatalf("a policy of %s is for %s: %s", p.Ref.Namespace, name, &p.Parts[i].Subject)
			}
		}
	}
}

// checkProblemTexts checks that problems are complete, short and printable.
func checkProblemTexts(t *testing.T, p *policy.Policy) {
	t.Helper()
	for _, problem := range p.Problems {
		if problem.Path == "" || problem.Reason == "" || len(problem.Message) > 1000 || strings.ContainsAny(problem.Message, "\n\x1b") {
			t.Fatalf("a problem is not fit to be shown: %+v", problem)
		}
	}
}

// dropRule replaces a rule by a rule without peers.
func dropRule(side, _ string, _ json.RawMessage) json.RawMessage {
	return json.RawMessage(`{"` + side + `Endpoints":[]}`)
}

// dropPeer removes from a rule the peer at a path: "fromEntities[1]".
func dropPeer(side, path string, rule json.RawMessage) json.RawMessage {
	field, rest, _ := strings.Cut(path, "[")
	index, _, _ := strings.Cut(rest, "]")
	var fields map[string]json.RawMessage
	var peers []json.RawMessage
	at, err := strconv.Atoi(index)
	if err != nil || json.Unmarshal(rule, &fields) != nil || json.Unmarshal(fields[field], &peers) != nil || at >= len(peers) {
		return dropRule(side, path, rule)
	}
	fields[field] = encode(slices.Delete(peers, at, at+1))
	return encode(fields)
}

func encode(v any) json.RawMessage {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// withoutRule edits the rule at a path: for "spec.ingress[2].fromNodes" the third rule of ingress.
func withoutRule(o *cilium.Policy, path string, edit func(side, path string, rule json.RawMessage) json.RawMessage) (*cilium.Policy, bool) {
	parts := strings.SplitN(path, ".", 3)
	if len(parts) < 2 {
		return nil, false
	}
	section, index, found := strings.Cut(parts[1], "[")
	at, err := strconv.Atoi(strings.TrimSuffix(index, "]"))
	if !found || err != nil {
		return nil, false
	}
	raw := o.Spec
	var specs []json.RawMessage
	number := -1
	if in, isSpecs := strings.CutPrefix(parts[0], "specs["); isSpecs {
		if number, err = strconv.Atoi(strings.TrimSuffix(in, "]")); err != nil || json.Unmarshal(o.Specs, &specs) != nil || number >= len(specs) {
			return nil, false
		}
		raw = specs[number]
	}
	var fields map[string]json.RawMessage
	var items []json.RawMessage
	if json.Unmarshal(raw, &fields) != nil || json.Unmarshal(fields[section], &items) != nil || at >= len(items) {
		return nil, false
	}
	items[at] = edit(map[bool]string{true: "from", false: "to"}[strings.HasPrefix(section, "ingress")], append(parts, "")[2], items[at])
	fields[section] = encode(items)
	smaller := *o
	if number < 0 {
		smaller.Spec = encode(fields)
		return &smaller, true
	}
	specs[number] = encode(fields)
	smaller.Specs = encode(specs)
	return &smaller, true
}

// grantsNoMore checks that the policy without the rule allows every connection that the policy with the rule allows.
func grantsNoMore(t *testing.T, w *policytest.World, with, without *policy.Policy, problem policy.Problem) {
	t.Helper()
	for n := range uint64(50) {
		q := w.Question(n)
		if q.Peer.Identity == identity.Unknown {
			continue
		}
		got := policy.Evaluate([]*policy.Policy{with}, policy.Options{}, q)
		if got.Verdict == policy.Deny {
			continue
		}
		if less := policy.Evaluate([]*policy.Policy{without}, policy.Options{}, q); less.Verdict == policy.Deny {
			t.Fatalf("%+v\nopens %+v:\n%+v\nwithout: %+v", problem, q, got, less)
		}
	}
}

// TestModel_JSON_KeepsEmptyPeersAndPorts checks that empty peers and ports match the same before and after JSON (CVE-2025-64715).
func TestModel_JSON_KeepsEmptyPeersAndPorts(t *testing.T) {
	t.Parallel()
	for _, r := range []policy.Rule{
		{}, {Peers: policy.Peers{Any: true}}, {Ports: policy.Ports{Any: true}}, {Peers: policy.Peers{List: []policy.Peer{}}},
		{Peers: policy.Peers{List: []policy.Peer{{Labels: &policy.Selector{}}}}},
	} {
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var back policy.Rule
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		who := policy.Party{Identity: 300, Labels: map[string]string{"k8s:app": "x"}}
		for _, one := range []policy.Rule{r, back} {
			wantPeers := r.Peers.Any || len(r.Peers.List) > 0
			if one.Peers.Matches(&who, policy.Options{}) != wantPeers || one.Ports.Matches(6, 80, nil) != r.Ports.Any {
				t.Errorf("%s: peers and ports match otherwise than they should", fmt.Sprint(string(text)))
			}
		}
	}
}
