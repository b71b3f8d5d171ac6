package node_test

import (
	"fmt"
	"testing"
)

// serviceManifest returns the manifest of a Service, which a case applies together with policies.
func serviceManifest(namespace, name, spec string) string {
	return fmt.Sprintf("---\n{apiVersion: v1, kind: Service, metadata: {namespace: %s, name: %s}, spec: {%s}}", namespace, name, spec)
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
}
