package services_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

const localService = `
apiVersion: v1
kind: Service
metadata: {name: local}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  selector: {app: local}
  ipFamilyPolicy: RequireDualStack
  healthCheckNodePort: 30099
  ports:
    - {name: tcp, port: 80, targetPort: 8080, nodePort: 30090}
    - {name: udp, port: 80, protocol: UDP, targetPort: 8080, nodePort: 30090}
`

// Addresses of a load balancer. The router has routes for them to the node with the server.
const balancerIPv4, balancerIPv6 = "203.0.113.10", "2001:db8:113::10"

// local tests externalTrafficPolicy Local with one server on node b: the server sees the client's address, node a drops requests, and the health check ports
// tell load balancers which node to use.
func local(t *testing.T, w *world) {
	w.apply(t, localService)
	w.balance(t, "local", balancerIPv4, balancerIPv6)
	w.lead(t, w.b, balancerIPv4, balancerIPv6)
	if err := w.RunPod(t.Context(), kube.Server("local", w.b)); err != nil {
		t.Fatal(err)
	}
	w.answers(t, w.outside(t), "local", kube.ServerAddresses(), append(kube.BothTargets("30090", w.b.IPv4, w.b.IPv6), kube.BothTargets("80", balancerIPv4, balancerIPv6)...)...)
	// A connected UDP socket would report an ICMP error.
	nothing := append(kube.Targets("tcp", "30090", w.a.IPv4, w.a.IPv6), kube.Targets("udp-connected", "30090", w.a.IPv4, w.a.IPv6)...)
	w.known(t, w.a, nothing...)
	if err := kube.Silent(w.outside(t), nothing...); err != nil {
		t.Error(err)
	}
	for node, want := range map[*kube.Node]string{w.a: "503", w.b: "200"} {
		if err := w.WaitFor(t.Context(), "the health check port of "+node.Name, func() error {
			out, err := w.RunOutside(t.Context(), "sh", "-c", "printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' | busybox nc -w 2 "+node.IPv4+" 30099")
			if err == nil && !strings.Contains(out, " "+want+" ") {
				err = fmt.Errorf("want %s: %s", want, out)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
}

// empty requires that clients of a Service without endpoints get rejections in pods, on nodes and outside.
func empty(t *testing.T, s *stays) {
	cluster := s.service(t, "empty", "NodePort", 82, "app: nobody", "")
	s.requireRejected(t, s.pod(t, "one"), "80", cluster...)
	s.requireRejected(t, s.node(t, s.a), "80", cluster...)
	s.requireRejected(t, s.outside(t), "30082", s.a.IPv4, s.a.IPv6)
}

// requireRejected waits until all addresses reject requests. A connected UDP socket reports the ICMP error.
func (w *world) requireRejected(t *testing.T, from kube.Requester, port string, addresses ...string) {
	t.Helper()
	targets := append(kube.Targets("tcp", port, addresses...), kube.Targets("udp-connected", port, addresses...)...)
	if err := w.WaitFor(t.Context(), "refusals", func() error { return refusal(from, targets...) }); err != nil {
		t.Error(err)
	}
}

// hostPortPod is a pod that listens on a port of its node.
const hostPortPod = `
apiVersion: v1
kind: Pod
metadata: {name: host-port}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  containers:
    - name: main
      image: waggle.local/talk:1
      imagePullPolicy: Never
      command: [/bin/talk, serve, "8080"]
      resources: {requests: {cpu: 20m}}
      ports: [{containerPort: 8080, hostPort: 8088}, {containerPort: 8080, hostPort: 8088, protocol: UDP}]
`

// hostPort creates a pod with a host port twice, with the same name and different addresses.
func hostPort(t *testing.T, w *world) {
	var before string
	for range 2 {
		w.apply(t, hostPortPod, w.a.Name)
		if err := w.WaitPodReady(t.Context(), "default/host-port"); err != nil {
			t.Fatal(err)
		}
		ips, err := w.PodIPs(t.Context(), "default/host-port")
		if err != nil || ips[0] == before {
			t.Fatalf("the pod has the addresses %v, had %s: %v", ips, before, err)
		}
		before = ips[0]
		w.answers(t, w.outside(t), "host-port", kube.ServerAddresses(), kube.BothTargets("8088", w.a.IPv4, w.a.IPv6)...)
		if err := w.DeletePod(t.Context(), "default/host-port"); err != nil {
			t.Fatal(err)
		}
	}
}

const nameService = `
apiVersion: v1
kind: Service
metadata: {namespace: kube-system, name: kube-dns}
spec:
  clusterIP: 10.96.0.10
  selector: {app: dns}
  ports: [{name: dns, port: 53, protocol: UDP, targetPort: 5353}]
---
apiVersion: v1
kind: Pod
metadata: {namespace: kube-system, name: dns, labels: {app: dns}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  containers:
    - {name: main, image: "waggle.local/talk:1", imagePullPolicy: Never, resources: {requests: {cpu: 20m}}, command: [/bin/talk, serve, "-dns", web.default.svc.cluster.local=10.96.0.80, "5353"]}
---
apiVersion: v1
kind: Pod
metadata: {name: program}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers:
    - {name: main, image: "waggle.local/talk:1", imagePullPolicy: Never, resources: {requests: {cpu: 20m}}, command: [/bin/talk, serve, "8080"]}
`

// names tests name resolution in a pod and access to the API server through the Service kubernetes, which most programs need first.
func names(t *testing.T, w *world) {
	w.apply(t, nameService, w.b.Name, w.a.Name)
	if err := errors.Join(w.WaitPodReady(t.Context(), "default/program"), w.WaitPodReady(t.Context(), "kube-system/dns")); err != nil {
		t.Fatal(err)
	}
	if err := w.WaitFor(t.Context(), "the name to be found", func() error {
		out, err := w.Exec(t.Context(), "program", "talk", "resolve", "web")
		if err == nil && strings.TrimSpace(out) != "["+webIPv4+"]" {
			err = fmt.Errorf("web is %q", out)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if out, err := w.Exec(t.Context(), "program", "talk", "api", "/version"); err != nil || !strings.Contains(out, "gitVersion") {
		t.Errorf("the API server by its Service: %s, %v", out, err)
	}
}
