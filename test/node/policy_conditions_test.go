package node_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var generatedName = regexp.MustCompile(`name: p\d+`)

// renamed gives the manifest of a policy a fixed name.
func renamed(name, manifest string) string {
	return generatedName.ReplaceAllLiteralString(manifest, "name: "+name)
}

// reportedCase is a case with the problems that the node reports on its policies: beginnings of lines of "waggle policy list", one for each problem.
type reportedCase struct {
	policyCase
	problems []string
}

// runReported is [world.run], and requires that the node reports the problems of the policies, and no other ones.
func (w *world) runReported(t *testing.T, cases []reportedCase) {
	t.Helper()
	for _, c := range cases {
		w.run(t, []policyCase{c.policyCase})
		w.reports(t, c.name, c.problems)
	}
}

var problemLine = regexp.MustCompile(`(?m)^(\S+ \S+) spec\S*: [A-Z]\w+: .*$`)

// reports requires that "waggle policy list" and "waggle status" report these problems.
func (w *world) reports(t *testing.T, name string, problems []string) {
	t.Helper()
	eventually(t, func() error {
		text, err := w.Waggle(t.Context(), "policy", "list")
		if err != nil {
			return err
		}
		var unexpected error
		lines := problemLine.FindAllString(text, -1)
		for _, line := range lines {
			if !slices.ContainsFunc(problems, func(p string) bool { return strings.HasPrefix(line, p) }) {
				unexpected = errors.Join(unexpected, fmt.Errorf("%s: the node reports %q", name, line))
			}
		}
		if len(lines) != len(problems) {
			unexpected = errors.Join(unexpected, fmt.Errorf("%s: the node reports %d problems, want %q:\n%s", name, len(lines), problems, text))
		}
		return unexpected
	})
	if len(problems) == 0 {
		awaitStatusWithout(t, w.Node, "not enforced as written")
		return
	}
	policies := map[string]bool{}
	for _, p := range problems {
		policies[problemLine.FindStringSubmatch(p)[1]] = true
	}
	awaitStatus(t, w.Node, fmt.Sprintf("%d not enforced as written; see waggle policy list", len(policies)))
}

// fromRequires and toRequires narrow the peers that policies of any kind select by labels, and no other peers.
func (w *world) ciliumRequirements(t *testing.T) {
	const back = "{matchLabels: {tier: back}, matchExpressions: [{key: 'k8s:io.kubernetes.pod.namespace', operator: Exists}]}"
	const isB = "{matchLabels: {app: b}, matchExpressions: [{key: 'k8s:io.kubernetes.pod.namespace', operator: Exists}]}"
	const xAndW = "{}, {matchLabels: {'k8s:io.kubernetes.pod.namespace': w}}"
	required := ciliumPolicy("x", subjectA+"ingress: [{fromRequires: ["+back+"]}]")
	w.runReported(t, []reportedCase{
		{policyCase{"of another policy, in both directions", []string{
			ciliumPolicy("x", subjectA+"ingress: [{fromRequires: ["+back+"]}], egress: [{toRequires: ["+isB+"]}]"),
			ciliumPolicy("x", subjectA+"ingress: [{fromEndpoints: ["+xAndW+"]}, {fromEntities: [world]}], egress: [{toEndpoints: ["+xAndW+"], toPorts: [{ports: [{port: '80', protocol: TCP}]}]}, "+
				"{toEntities: [host]}]")}, nil,
			both(inbound("x/a", from("x/b w/a "+theOutside)), outbound("x/a", func(f flow) bool { return within("x/b w/b", f.to) && on("tcp", 80)(f) || f.to == theNode }))}, nil},
		{policyCase{"of two policies, for a policy of Kubernetes", []string{required, ciliumPolicy("x", subjectA+"ingress: [{fromRequires: ["+isB+"]}]"),
			networkPolicy("x", selectA+"ingress: [{from: [{namespaceSelector: {}}, {ipBlock: {cidr: @x/c/4}}]}]")}, nil,
			inbound("x/a", func(f flow) bool { return f.from == "x/b" || f.from == "x/c" && !f.ipv6 })}, nil},
		{policyCase{"of the whole cluster", []string{clusterwidePolicy(subjectA + "ingress: [{fromRequires: [{matchLabels: {tier: back}}]}]"),
			ciliumPolicy("x", subjectA+"ingress: [{fromEndpoints: [{}]}]"), networkPolicy("z", selectA+"ingress: [{from: [{namespaceSelector: {}}]}]")}, nil,
			both(inbound("x/a", from("x/b")), both(inbound("z/a", from("x/b w/a")), inbound("w/a", none)))}, nil},
		{policyCase{"of a deny, for the denies of another policy", []string{ciliumPolicy("x", subjectA+"ingress: [{fromEntities: [all]}], ingressDeny: [{fromRequires: ["+back+"]}]"),
			ciliumPolicy("x", subjectA+"ingressDeny: [{fromEndpoints: [{}]}]")}, nil, inbound("x/a", func(f flow) bool { return f.from != "x/b" })}, nil},
		{policyCase{"that cannot be checked", []string{renamed("required", ciliumPolicy("x", subjectA+"ingress: [{fromRequires: [{matchLabels: {pod-template-hash: '1'}}]}]")),
			ciliumPolicy("x", subjectA+"ingress: [{fromEndpoints: [{}]}, {fromEntities: [world]}]")}, nil, inbound("x/a", from(theOutside))},
			[]string{"CiliumNetworkPolicy x/required spec.ingress[0].fromRequires[0]: LabelNotInIdentity: "}},
	})
}

// An allow rule with serverNames or authentication denies connections with its peers on its ports, also if other rules allow them.
func (w *world) uncheckedConnections(t *testing.T) {
	const tcp80 = "ports: [{port: '80', protocol: TCP}]"
	const toB = "toEndpoints: [{matchLabels: {app: b}}]"
	names := renamed("names", ciliumPolicy("x", subjectA+"egress: [{"+toB+", toPorts: [{"+tcp80+", serverNames: [a.example]}]}, "+
		"{"+toB+", toPorts: [{ports: [{port: '81', protocol: TCP}]}]}]"))
	authenticated := func(ports string) string {
		return renamed("authenticated", ciliumPolicy("x", subjectA+"ingress: [{fromEndpoints: [{matchLabels: {app: b}}], authentication: {mode: required}"+ports+"}]"))
	}
	const namesProblem = "CiliumNetworkPolicy x/names spec.egress[0].toPorts[0].serverNames: Unsupported: "
	const authenticationProblem = "CiliumNetworkPolicy x/authenticated spec.ingress[0].authentication: Unsupported: "
	isB80 := func(name string, f flow) bool { return name == "x/b" && on("tcp", 80)(f) }
	w.runReported(t, []reportedCase{
		{policyCase{"names and authentication alone", []string{names, authenticated("")}, nil,
			both(outbound("x/a", func(f flow) bool { return f.to == "x/b" && on("tcp", 81)(f) }), inbound("x/a", none))}, []string{namesProblem, authenticationProblem}},
		{policyCase{"names beside rules for the same peer and port", []string{names, ciliumPolicy("x", subjectA+"egress: [{toEndpoints: [{}]}, {"+toB+", toPorts: [{"+tcp80+"}]}]")}, nil,
			outbound("x/a", func(f flow) bool { return within("x/*", f.to) && !isB80(f.to, f) })}, []string{namesProblem}},
		{policyCase{"names for the world beside a policy of Kubernetes", []string{
			renamed("names", ciliumPolicy("x", subjectA+"egress: [{toEntities: [world], toPorts: [{"+tcp80+", serverNames: [a.example]}]}]")),
			networkPolicy("x", selectA+"policyTypes: [Egress], egress: [{}]")}, nil, outbound("x/a", func(f flow) bool { return f.to != theOutside || !on("tcp", 80)(f) })},
			[]string{namesProblem}},
		{policyCase{"authentication beside rules for the same peer and port", []string{authenticated(", toPorts: [{" + tcp80 + "}]"),
			ciliumPolicy("x", subjectA+"ingress: [{fromEntities: [all]}, {fromEndpoints: [{matchLabels: {app: b}}], toPorts: [{"+tcp80+"}]}]")}, nil,
			inbound("x/a", func(f flow) bool { return !isB80(f.from, f) })}, []string{authenticationProblem}},
		{policyCase{"authentication without ports beside a policy of Kubernetes", []string{authenticated(""), networkPolicy("x", selectA+"ingress: [{}]")}, nil,
			inbound("x/a", func(f flow) bool { return f.from != "x/b" })}, []string{authenticationProblem}},
		{policyCase{"authentication that is disabled", []string{ciliumPolicy("x", subjectA+"ingress: [{fromEndpoints: [{matchLabels: {app: b}}], authentication: {mode: disabled}}]")}, nil,
			inbound("x/a", from("x/b"))}, nil},
	})
}
