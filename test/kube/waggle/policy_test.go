package waggle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kube"
)

// policyWorld is a node with pods of two namespaces. Each pod listens on two ports.
type policyWorld struct {
	*kube.Cluster
	node  *kube.Node
	ips   map[string][]string // by "namespace/name"
	marks int                 // number of the last mark, see [policyWorld.apply]
}

// policyPods maps the pods to their label app.
var policyPods = map[string]string{"x/a": "a", "x/b": "b", "w/a": "a", "w/b": "b"}

func newPolicyWorld(t *testing.T, shared *kube.Cluster) *policyWorld {
	t.Helper()
	c, n := installedNode(t, shared, kube.NodeOptions{})
	w := &policyWorld{Cluster: c, node: n, ips: map[string][]string{}}
	for _, name := range []string{"x", "w"} {
		t.Cleanup(func() {
			if err := c.DeleteNamespace(context.WithoutCancel(t.Context()), name); err != nil {
				t.Error(err)
			}
		})
		if err := c.CreateNamespace(t.Context(), name, map[string]string{"team": name}); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex // guards w.ips
	var group errgroup.Group
	for name, app := range policyPods {
		group.Go(func() error {
			namespace, pod, _ := strings.Cut(name, "/")
			p := kube.Pod{Namespace: namespace, Name: pod, Labels: map[string]string{"app": app}, Ports: map[string]int{"web": 81},
				Command: []string{"sh", "-c", "httpd -p 81; exec httpd -f -p 80"}}
			// The creation fails until the controller manager has created the namespace's ServiceAccount.
			if err := c.WaitFor(t.Context(), "pod "+name+" to be created", func() error { return c.CreatePod(t.Context(), p) }); err != nil {
				return err
			}
			if err := c.WaitPodReady(t.Context(), name); err != nil {
				return err
			}
			ips, err := c.PodIPs(t.Context(), name)
			mu.Lock()
			defer mu.Unlock()
			w.ips[name] = ips
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return w
}

// tcp is a TCP connection attempt.
type tcp struct{ from, to, ip, port string }

func (c tcp) String() string { return c.to + " " + c.ip + " " + c.port }

// connections returns all possible connections of one pod or of the node.
func (w *policyWorld) connections(from string) (all []tcp) {
	for to, ips := range w.ips {
		for _, ip := range ips {
			if to != from {
				all = append(all, tcp{from, to, ip, "80"}, tcp{from, to, ip, "81"})
			}
		}
	}
	return all
}

// patience is the time in seconds that each attempt gets in a series of tries of connections: longer in later ones, in case the machine is busy.
type patience int

func (p *patience) next() int {
	*p = min(max(1, 2**p), 15)
	return int(*p)
}

// reached tries connections of one pod, or of the node, concurrently and returns the successful ones.
func (w *policyWorld) reached(ctx context.Context, from string, all []tcp, seconds int) (list []string, err error) {
	var script strings.Builder
	for _, c := range all {
		fmt.Fprintf(&script, "(busybox nc -w %d %s %s </dev/null >/dev/null 2>&1 && echo %s) & ", seconds, c.ip, c.port, c)
	}
	script.WriteString("wait; true")
	var out string
	if from == "node" {
		out, err = w.node.Run(ctx, "sh", "-c", script.String())
	} else {
		out, err = w.Exec(ctx, from, "sh", "-c", script.String())
	}
	for line := range strings.Lines(out) {
		list = append(list, strings.TrimSpace(line))
	}
	slices.Sort(list)
	return list, err
}

// compare tries all connections. A successful connection that want denies fails the test immediately, because the policies are already enforced. A failed
// connection that want allows is retried.
func (w *policyWorld) compare(t *testing.T, want func(tcp) bool) {
	t.Helper()
	var group errgroup.Group
	for _, from := range []string{"node", "w/a", "w/b", "x/a", "x/b"} {
		left := w.connections(from)
		group.Go(func() error {
			var leaks []tcp
			var tries patience
			err := w.WaitFor(t.Context(), "the connections of "+from, func() error {
				got, err := w.reached(t.Context(), from, left, tries.next())
				var missing []tcp
				for _, c := range left {
					switch answered := slices.Contains(got, c.String()); {
					case answered && !want(c):
						leaks = append(leaks, c)
					case !answered && want(c):
						missing = append(missing, c)
					}
				}
				if len(leaks) > 0 {
					return nil
				}
				if err == nil && len(missing) > 0 {
					err = fmt.Errorf("%s does not reach %v", from, missing)
					left = missing
				}
				return err
			})
			if len(leaks) > 0 {
				err = errors.Join(err, fmt.Errorf("%s reaches %v, and must not", from, leaks))
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// policyOfARealKubernetes tests the main cases of the specification with pods of a kubelet, and the status of policies on a real API server. Package
// test/node tests the other cases.
func policyOfARealKubernetes(t *testing.T, shared *kube.Cluster) {
	w := newPolicyWorld(t, shared)
	anyPeer := func(tcp) bool { return true }
	noPeer := func(tcp) bool { return false }
	into := func(pods string, allowed func(tcp) bool) func(tcp) bool {
		return func(c tcp) bool { return !strings.Contains(pods, c.to) || c.from == "node" || allowed(c) }
	}
	from := func(pods string) func(tcp) bool { return func(c tcp) bool { return strings.Contains(pods, c.from) } }
	step := func(name string, kind policyKind, spec string, want func(tcp) bool) {
		t.Run(name, func(t *testing.T) {
			w.apply(t, kind, kind.object("step", spec))
			w.compare(t, want)
		})
	}
	team := func(name, label string, want func(tcp) bool) {
		t.Run(name, func(t *testing.T) {
			w.labelNamespace(t, "w", label)
			w.compare(t, want)
		})
	}
	const subject = "podSelector: {matchLabels: {app: a}}, "
	w.compare(t, anyPeer)
	step("default deny, and the node reaches its pods", kubernetesPolicy, "podSelector: {}, policyTypes: [Ingress]", into("x/a x/b", noPeer))
	step("pods of the namespace on a port", kubernetesPolicy, subject+"ingress: [{from: [{podSelector: {}}], ports: [{port: 80}]}]",
		into("x/a", func(c tcp) bool { return c.from == "x/b" && c.port == "80" }))
	step("a named port", kubernetesPolicy, subject+"ingress: [{ports: [{port: web}]}]", into("x/a", func(c tcp) bool { return c.port == "81" }))
	step("a namespace", kubernetesPolicy, subject+"ingress: [{from: [{namespaceSelector: {matchLabels: {team: w}}}]}]", into("x/a", from("w/a w/b")))
	team("a label of the namespace goes", "other", into("x/a", noPeer))
	team("and comes back", "w", into("x/a", from("w/a w/b")))
	step("all IPv4 addresses less one", kubernetesPolicy, subject+"ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: ["+ipv4(w.ips["w/b"])+"/32]}}]}]",
		into("x/a", func(c tcp) bool { return c.from != "w/b" && !strings.Contains(c.ip, ":") }))
	step("egress", kubernetesPolicy, subject+"policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: b}}}]}]",
		func(c tcp) bool { return c.from != "x/a" || c.to == "x/b" })
	t.Run("no policy", func(t *testing.T) {
		if out, err := w.Kubectl(t.Context(), "delete", "networkpolicy", "-n", "x", "step"); err != nil {
			t.Fatal(err, out)
		}
		w.apply(t, kubernetesPolicy, "")
		w.compare(t, anyPeer)
	})
	t.Run("Services as peers", func(t *testing.T) { toServices(t, w) })
	t.Run("particular forms of policies", func(t *testing.T) { particularForms(t, w) })
	step("a deny of Cilium's", ciliumPolicy, "endpointSelector: {matchLabels: {app: a}}, ingress: [{fromEntities: [cluster]}], ingressDeny: [{fromEndpoints: [{matchLabels: {app: b}}]}]",
		into("x/a", from("w/a w/b")))
	t.Run("groups of CIDRs", func(t *testing.T) { groupsOfCIDRs(t, w) })
	t.Run("policies report unenforced parts", func(t *testing.T) { requirePolicyStatus(t, w) })
}

// ipv4 returns the IPv4 address among a pod's addresses.
func ipv4(ips []string) string {
	return ips[slices.IndexFunc(ips, func(ip string) bool { return !strings.Contains(ip, ":") })]
}

// condition waits until a Cilium policy in namespace x has the condition Valid with a status and a reason.
func (w *policyWorld) condition(t *testing.T, policy, status, reason string) {
	t.Helper()
	began := time.Now()
	if err := w.WaitFor(t.Context(), "the condition Valid of "+policy+" to be "+status, func() error {
		var o struct {
			Status struct {
				Conditions []struct{ Type, Status, Reason, Message string }
			}
		}
		if err := w.GetObject(t.Context(), "/apis/cilium.io/v2/namespaces/x/ciliumnetworkpolicies/"+policy, &o); err != nil {
			return err
		}
		if c := o.Status.Conditions; len(c) != 1 || c[0].Type != "Valid" || c[0].Status != status || c[0].Reason != reason || c[0].Message == "" {
			return fmt.Errorf("the conditions are %+v", c)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	t.Logf("%s %s after %s", status, reason, time.Since(began).Round(time.Millisecond))
}

// groupsOfCIDRs changes CIDR groups that policies refer to. The API server's address is outside the cluster.
func groupsOfCIDRs(t *testing.T, w *policyWorld) {
	server := w.apiServer(t)
	reached := func(what string, want bool) {
		t.Helper()
		var tries patience
		if err := w.WaitFor(t.Context(), what, func() error {
			got, err := w.reached(t.Context(), server.from, []tcp{server}, tries.next())
			if err == nil && (len(got) > 0) != want {
				err = fmt.Errorf("x/a reaches %v", got)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	group := func(name, role, cidr string) {
		t.Helper()
		if err := w.Apply(t.Context(), "{apiVersion: cilium.io/v2, kind: CiliumCIDRGroup, metadata: {name: "+name+", labels: {role: "+role+"}}, spec: {externalCIDRs: ["+cidr+"]}}"); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(names ...string) {
		t.Helper()
		if out, err := w.Kubectl(t.Context(), append([]string{"delete", "-n", "x"}, names...)...); err != nil {
			t.Fatal(err, out)
		}
	}
	const subject = "endpointSelector: {matchLabels: {app: a}}, "
	w.apply(t, ciliumPolicy, ciliumPolicy.object("partners", subject+"egress: [{toCIDRSet: [{cidrGroupRef: partners}]}]"))
	w.condition(t, "partners", "False", "NotFound")
	reached("a group that does not exist to allow nothing", false)
	group("partners", "partner", server.ip)
	w.condition(t, "partners", "True", "Enforceable")
	reached("the group to be allowed", true)
	w.apply(t, ciliumPolicy, ciliumPolicy.object("banned", subject+"egressDeny: [{toCIDRSet: [{cidrGroupSelector: {matchLabels: {role: banned}}}]}]"))
	w.condition(t, "banned", "False", "NotFound")
	reached("groups that do not exist to deny nothing", true)
	group("others", "banned", server.ip+"/24")
	reached("the group to be denied", false)
	group("others", "none", server.ip+"/24")
	reached("a group without the label not to be denied", true)
	remove("ciliumcidrgroup/partners")
	reached("a group that is deleted to allow nothing", false)
	w.condition(t, "partners", "False", "NotFound")
	remove("ciliumcidrgroup/others", "cnp/partners", "cnp/banned")
}

// event waits until a policy in namespace x has an Event with a reason.
func (w *policyWorld) event(t *testing.T, kind, name, reason string) {
	t.Helper()
	if err := w.WaitFor(t.Context(), "an Event "+reason+" on "+kind+" "+name, func() error {
		var list struct {
			Items []struct {
				Type, Message  string
				InvolvedObject struct{ Kind, Name string }
			}
		}
		if err := w.GetObject(t.Context(), "/api/v1/namespaces/x/events?fieldSelector=reason%3D"+reason, &list); err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && e.Type == "Warning" && e.Message != "" {
				return nil
			}
		}
		return fmt.Errorf("the Events are %+v", list.Items)
	}); err != nil {
		t.Error(err)
	}
}

// requirePolicyStatus checks conditions and Events of policies.
func requirePolicyStatus(t *testing.T, w *policyWorld) {
	w.condition(t, "step", "True", "Enforceable")
	if err := w.Apply(t.Context(), ciliumPolicy.object("step", "endpointSelector: {matchLabels: {app: a}}, ingress: [{toPorts: [{ports: [{port: '80', protocol: TCP}], rules: {http: [{method: GET}]}}]}]")); err != nil {
		t.Fatal(err)
	}
	w.condition(t, "step", "False", "Unsupported")
	w.event(t, "CiliumNetworkPolicy", "step", "PolicyNotEnforced")
	if err := w.Apply(t.Context(), kubernetesPolicy.object("step", "podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {pod-template-hash: x}}}]}]")); err != nil {
		t.Fatal(err)
	}
	w.event(t, "NetworkPolicy", "step", "PolicyNotEnforced")

	// Each policy is correct, so only the node that has their endpoint can report them.
	for i, requirements := range kube.TooManyRequirements() {
		if err := w.Apply(t.Context(), ciliumPolicy.object(fmt.Sprint("large-", i), "endpointSelector: {matchLabels: {app: a}}, ingress: [{fromEndpoints: [{}], "+
			"fromRequires: "+requirements+"}]")); err != nil {
			t.Fatal(err)
		}
	}
	w.condition(t, "large-0", "True", "Enforceable")
	w.event(t, "CiliumNetworkPolicy", "large-0", "PolicyOverflow")
}
