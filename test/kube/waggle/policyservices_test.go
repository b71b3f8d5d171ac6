package waggle_test

import (
	"fmt"
	"slices"
	"testing"
)

// apiServer returns a connection of the pod x/a to the API server, which is outside the cluster.
func (w *policyWorld) apiServer(t *testing.T) tcp {
	t.Helper()
	var slice struct {
		Endpoints []struct{ Addresses []string }
		Ports     []struct{ Port int }
	}
	if err := w.GetObject(t.Context(), "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes", &slice); err != nil {
		t.Fatal(err)
	}
	return tcp{"x/a", "server", slice.Endpoints[0].Addresses[0], fmt.Sprint(slice.Ports[0].Port)}
}

// reaches waits until the pod x/a reaches exactly the named peers: pods on both ports, and the API server as "server".
func (w *policyWorld) reaches(t *testing.T, what string, peers ...string) {
	t.Helper()
	all := append(w.connections("x/a"), w.apiServer(t))
	var want []string
	for _, c := range all {
		if slices.Contains(peers, c.to) {
			want = append(want, c.String())
		}
	}
	slices.Sort(want)
	var tries patience
	if err := w.WaitFor(t.Context(), what, func() error {
		got, err := w.reached(t.Context(), "x/a", all, tries.next())
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("x/a reaches %v, want %v", got, want)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

const (
	servicesOfX = "/api/v1/namespaces/x/services"
	slicesOfX   = "/apis/discovery.k8s.io/v1/namespaces/x/endpointslices"
)

// toServices changes Services that a policy names or chooses by their labels: one with a selector, and one without whose slice has the API server's address.
func toServices(t *testing.T, w *policyWorld) {
	create := func(path string, object map[string]any) {
		t.Helper()
		if err := w.Create(t.Context(), path, object); err != nil {
			t.Fatal(err)
		}
	}
	service := func(name string, labels map[string]string, spec map[string]any) {
		t.Helper()
		spec["ports"] = []map[string]any{{"port": 80}}
		create(servicesOfX, map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": name, "labels": labels}, "spec": spec})
	}
	patch := func(name, patch string) {
		t.Helper()
		if err := w.MergePatch(t.Context(), servicesOfX+"/"+name, patch); err != nil {
			t.Fatal(err)
		}
	}
	w.apply(t, ciliumPolicy, ciliumPolicy.object("services", "endpointSelector: {matchLabels: {app: a}}, egress: [{toServices: [{k8sService: {serviceName: db}}, "+
		"{k8sServiceSelector: {selector: {matchLabels: {plan: gold}}}}]}]"))
	w.condition(t, "services", "False", "NotFound")
	w.reaches(t, "Services that do not exist to allow nothing")
	service("db", nil, map[string]any{"selector": map[string]string{"app": "b"}})
	w.reaches(t, "the pods that a Service selects to be allowed", "x/b")
	service("ledger", map[string]string{"plan": "gold"}, map[string]any{})
	create(slicesOfX, map[string]any{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata":  map[string]any{"name": "ledger-outside", "labels": map[string]string{"kubernetes.io/service-name": "ledger"}},
		"endpoints": []map[string]any{{"addresses": []string{w.apiServer(t).ip}}}})
	w.reaches(t, "the addresses in slices to be allowed", "x/b", "server")
	w.condition(t, "services", "True", "Enforceable") // changed Services change conditions once in 30 s, so this is the only wait for such a change
	patch("ledger", `{"metadata": {"labels": {"plan": "basic"}}}`)
	w.reaches(t, "a Service without the label not to be allowed", "x/b")
	patch("ledger", `{"metadata": {"labels": {"plan": "gold"}}}`)
	patch("db", `{"spec": {"selector": null}}`) // the slices with addresses of pods stay, and addresses do not match pods
	w.reaches(t, "pods that no Service selects not to be allowed", "server")
	for _, path := range []string{slicesOfX + "/ledger-outside", servicesOfX + "/ledger", servicesOfX + "/db"} {
		if err := w.Delete(t.Context(), path); err != nil {
			t.Fatal(err)
		}
	}
	w.reaches(t, "Services that are deleted to allow nothing")
	w.remove(t, "services")
}

// particularForms applies three policies: one whose subject names another namespace is enforced in its own, one of entities without peers allows none, and empty
// rules about requests do not count.
func particularForms(t *testing.T, w *policyWorld) {
	w.apply(t, ciliumPolicy, ciliumPolicy.object("namespace", "endpointSelector: {matchLabels: {'k8s:io.kubernetes.pod.namespace': w, app: a}}, ingress: [{fromEndpoints: [{matchLabels: {app: b}}]}]")+
		ciliumPolicy.object("entities", "endpointSelector: {matchLabels: {app: b}}, ingress: [{fromEntities: [ingress, unmanaged, init]}]")+
		ciliumPolicy.object("rules", "endpointSelector: {matchLabels: {app: a}}, ingress: [{fromEndpoints: [{matchLabels: {'k8s:io.kubernetes.pod.namespace': w}}], "+
			"toPorts: [{ports: [{port: '80', protocol: TCP}], rules: {}}]}]"))
	w.compare(t, func(c tcp) bool {
		switch {
		case c.from == "node":
			return true
		case c.to == "x/a":
			return c.from == "x/b" || c.port == "80"
		default:
			return c.to != "x/b"
		}
	})
	w.condition(t, "namespace", "False", "Invalid")
	w.condition(t, "entities", "False", "Unsupported")
	w.condition(t, "rules", "True", "Enforceable")
	w.remove(t, "namespace", "entities", "rules")
}

// remove deletes Cilium's policies and waits until they are no longer enforced.
func (w *policyWorld) remove(t *testing.T, policies ...string) {
	t.Helper()
	for _, name := range policies {
		if err := w.Delete(t.Context(), "/apis/cilium.io/v2/namespaces/x/ciliumnetworkpolicies/"+name); err != nil {
			t.Fatal(err)
		}
	}
	w.apply(t, ciliumPolicy, "")
}
