package node_test

import (
	"fmt"
	"strings"
	"testing"
)

// serviceManifest returns the manifest of a Service, which a case applies together with policies.
func serviceManifest(namespace, name, spec string) string {
	return labelledService(namespace, name, "", spec)
}

// labelledService is [serviceManifest] with labels of the Service.
func labelledService(namespace, name, labels, spec string) string {
	return fmt.Sprintf("---\n{apiVersion: v1, kind: Service, metadata: {namespace: %s, name: %s, labels: {%s}}, spec: {%s}}", namespace, name, labels, spec)
}

// slices returns the manifests of the EndpointSlices of a Service, one for each family, with the addresses of some parties.
func (w *world) slices(namespace, service string, names ...string) string {
	var manifests []string
	for i, family := range []string{"IPv4", "IPv6"} {
		var endpoints []string
		for _, name := range names {
			endpoints = append(endpoints, "{addresses: ['"+w.party(name).addrs[i].String()+"']}")
		}
		manifests = append(manifests, fmt.Sprintf("---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {namespace: %s, name: %s-%s, "+
			"labels: {kubernetes.io/service-name: %s}}, addressType: %s, endpoints: [%s]}", namespace, service, strings.ToLower(family), service, family,
			strings.Join(endpoints, ", ")))
	}
	return strings.Join(manifests, "\n")
}

// Rules that name a Service mean the pods that it selects. Some cases change the Service alone, or the policy alone.
func (w *world) ciliumServices(t *testing.T) {
	const ports = ", ports: [{port: 80}]"
	selects := func(namespace, app string) string {
		return serviceManifest(namespace, "s", "selector: {app: "+app+"}"+ports)
	}
	allow := ciliumPolicy("x", subjectA+"egress: [{toServices: [{k8sService: {serviceName: s}}]}]")
	elsewhere := ciliumPolicy("x", subjectA+"egress: [{toServices: [{k8sService: {serviceName: s, namespace: w}}]}]")
	deny := ciliumPolicy("x", subjectA+"egress: [{toEntities: [all]}], egressDeny: [{toServices: [{k8sService: {serviceName: s, namespace: x}}]}]")
	clusterwide := clusterwidePolicy(subjectA + "egress: [{toEntities: [all]}], egressDeny: [{toServices: [{k8sService: {serviceName: s, namespace: x}}]}]")
	w.run(t, []policyCase{
		{"a Service that does not exist allows nothing", []string{allow}, nil, outbound("x/a", none)},
		{"the Service is created", []string{allow, selects("x", "b")}, nil, outbound("x/a", to("x/b"))},
		{"its selector changes", []string{allow, selects("x", "c")}, nil, outbound("x/a", to("x/c"))},
		{"it loses its selector", []string{allow, serviceManifest("x", "s", "type: ClusterIP"+ports)}, nil, outbound("x/a", none)},
		{"it selects pods again", []string{allow, selects("x", "b")}, nil, outbound("x/a", to("x/b"))},
		{"it is deleted", []string{allow}, nil, outbound("x/a", none)},
		{"a Service of another namespace", []string{elsewhere, selects("w", "b"), selects("x", "c")}, nil, outbound("x/a", to("w/b"))},
		{"ports are pod ports", []string{ciliumPolicy("x", subjectA+"egress: [{toServices: [{k8sService: {serviceName: s}}], toPorts: [{ports: [{port: '81', protocol: TCP}]}]}]"),
			selects("x", "b")}, nil, outbound("x/a", func(f flow) bool { return f.to == "x/b" && on("tcp", 81)(f) })},
		{"a deny of a Service", []string{deny, selects("x", "b")}, nil, outbound("x/a", func(f flow) bool { return f.to != "x/b" })},
		{"the selector of the denied Service changes", []string{deny, selects("x", "c")}, nil, outbound("x/a", func(f flow) bool { return f.to != "x/c" })},
		{"a deny of a Service that does not exist", []string{deny}, nil, all},
		{"a deny without a namespace is a deny of all", []string{ciliumPolicy("x", subjectA+"egress: [{toEntities: [all]}], egressDeny: [{toServices: [{k8sService: {serviceName: s}}]}]"),
			selects("x", "b")}, nil, outbound("x/a", none)},
		{"a deny of the whole cluster", []string{clusterwide, selects("x", "b")}, nil, outbound("x/a w/a z/a", func(f flow) bool { return f.to != "x/b" })},
		{"its Service is an ExternalName", []string{clusterwide, serviceManifest("x", "s", "type: ExternalName, externalName: a.example, selector: {app: b}")}, nil, all},
	})
	w.servicesWithoutSelector(t)
	w.servicesByLabels(t)
}

// A Service without a selector means the addresses in its slices, outside the cluster.
func (w *world) servicesWithoutSelector(t *testing.T) {
	bare := serviceManifest("x", "s", "type: ClusterIP, ports: [{port: 80}]")
	allow := ciliumPolicy("x", subjectA+"egress: [{toServices: [{k8sService: {serviceName: s}}]}]")
	deny := ciliumPolicy("x", subjectA+"egress: [{toEntities: [all]}], egressDeny: [{toServices: [{k8sService: {serviceName: s, namespace: x}}]}]")
	w.run(t, []policyCase{
		{"a Service without a selector and without slices", []string{allow, bare}, nil, outbound("x/a", none)},
		{"its slices name the host outside", []string{allow, bare, w.slices("x", "s", theOutside)}, nil, outbound("x/a", to(theOutside))},
		{"they name a pod and the node", []string{allow, bare, w.slices("x", "s", "x/b", theNode)}, nil, outbound("x/a", none)},
		{"slices of another Service", []string{allow, bare, w.slices("x", "other", theOutside)}, nil, outbound("x/a", none)},
		{"slices of another namespace", []string{allow, bare, w.slices("w", "s", theOutside)}, nil, outbound("x/a", none)},
		{"a deny of a Service without a selector", []string{deny, bare, w.slices("x", "s", theOutside)}, nil, outbound("x/a", func(f flow) bool { return f.to != theOutside })},
		{"its slices are deleted", []string{deny, bare}, nil, all},
	})
}

// Services that a rule chooses by their labels mean the same as Services that it names.
func (w *world) servicesByLabels(t *testing.T) {
	const ports = ", ports: [{port: 80}]"
	const gold, basic = "plan: gold", "plan: basic"
	pods := func(namespace, name, labels, app string) string {
		return labelledService(namespace, name, labels, "selector: {app: "+app+"}"+ports)
	}
	allow := ciliumPolicy("x", subjectA+"egress: [{toServices: [{k8sServiceSelector: {selector: {matchLabels: {plan: gold}}}}]}]")
	deny := ciliumPolicy("x", subjectA+"egress: [{toEntities: [all]}], egressDeny: [{toServices: [{k8sServiceSelector: {selector: {matchLabels: {plan: gold}}, namespace: x}}]}]")
	elsewhere := pods("w", "s", gold, "b")
	w.run(t, []policyCase{
		{"no Service has the label", []string{allow, elsewhere, pods("x", "one", basic, "b")}, nil, outbound("x/a", none)},
		{"one Service has it", []string{allow, elsewhere, pods("x", "one", gold, "b"), pods("x", "two", basic, "c")}, nil, outbound("x/a", to("x/b"))},
		{"their labels change", []string{allow, elsewhere, pods("x", "one", basic, "b"), pods("x", "two", gold, "c")}, nil, outbound("x/a", to("x/c"))},
		{"one of two has no selector", []string{allow, elsewhere, labelledService("x", "one", gold, "type: ClusterIP"+ports), w.slices("x", "one", theOutside), pods("x", "two", gold, "c")}, nil,
			outbound("x/a", to("x/c "+theOutside))},
		{"all are deleted", []string{allow, elsewhere}, nil, outbound("x/a", none)},
		{"every Service of a namespace", []string{ciliumPolicy("x", subjectA+"egress: [{toServices: [{k8sServiceSelector: {selector: {}, namespace: w}}]}]"), elsewhere,
			pods("x", "one", gold, "b")}, nil, outbound("x/a", to("w/b"))},
		{"a deny by labels", []string{deny, elsewhere, pods("x", "one", gold, "b"), pods("x", "two", basic, "c")}, nil, outbound("x/a", func(f flow) bool { return f.to != "x/b" })},
		{"a deny by labels without a namespace is a deny of all", []string{ciliumPolicy("x", subjectA+"egress: [{toEntities: [all]}], "+
			"egressDeny: [{toServices: [{k8sServiceSelector: {selector: {}}}]}]"), pods("x", "one", gold, "b")}, nil, outbound("x/a", none)},
	})
}
