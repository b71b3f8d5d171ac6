package services_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
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

// Addresses of a load balancer, which the router leads to the node with the server.
const balancerIPv4, balancerIPv6 = "203.0.113.10", "2001:db8:113::10"

// local has the one server on node b: clients are seen with their addresses, node a says nothing, and load balancers are told
// which of the nodes to take.
func local(t *testing.T, w *world) {
	w.apply(t, localService)
	if _, err := w.Kubectl(t.Context(), "patch", "service", "local", "--subresource=status", "-p",
		fmt.Sprintf(`{"status": {"loadBalancer": {"ingress": [{"ip": %q}, {"ip": %q}]}}}`, balancerIPv4, balancerIPv6)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Route(balancerIPv4+"/32", w.b), w.Route(balancerIPv6+"/128", w.b), w.RunPod(t.Context(), server("local", w.b))); err != nil {
		t.Fatal(err)
	}
	client := kube.ServerAddresses()
	for _, network := range []string{"tcp", "udp"} {
		w.answers(t, "local 8080 "+client[0], append(of(network, "30090", w.b.IPv4), of(network, "80", balancerIPv4)...)...)
		w.answers(t, "local 8080 "+client[1], append(of(network, "30090", w.b.IPv6), of(network, "80", balancerIPv6)...)...)
	}
	w.silent(t, w.a, "30090")
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

// silent wants no answer at all at a port of a node that knows of the Service, neither a connection nor a refusal.
func (w *world) silent(t *testing.T, n *kube.Node, port string) {
	t.Helper()
	addresses := []string{n.IPv4, netip.MustParseAddr(n.IPv6).String()}
	if err := w.WaitFor(t.Context(), "port "+port+" in the maps of "+n.Name, func() error {
		out, err := n.Waggle(t.Context(), "bpf", "lb", "list", "--frontends")
		for _, a := range addresses {
			for _, protocol := range []string{"/TCP ", "/UDP "} {
				if at := net.JoinHostPort(a, port) + protocol; err == nil && !strings.Contains(out, at) {
					err = fmt.Errorf("no %s: %s", at, out)
				}
			}
		}
		return err
	}); err != nil {
		t.Error(err)
		return
	}
	// A refusal of datagrams reaches a socket that is connected.
	for _, target := range append(of("tcp", port, addresses...), of("udp-connected", port, addresses...)...) {
		got, err := w.outside(t, target)
		if err == nil || !noAnswer.MatchString(err.Error()) {
			t.Errorf("%s: %q, %v; want no answer, so that load balancers try the next node", target, got, err)
		}
	}
}

// noAnswer is what talk says when nothing comes back: a connection that is made and then silent is another thing.
var noAnswer = regexp.MustCompile(`: dial tcp \S+: i/o timeout|: no answer`)

const emptyService = `
apiVersion: v1
kind: Service
metadata: {name: empty}
spec:
  type: NodePort
  selector: {app: nobody}
  ipFamilyPolicy: RequireDualStack
  clusterIP: 10.96.0.82
  clusterIPs: [10.96.0.82, "fd00:10:96::82"]
  ports:
    - {name: tcp, port: 80, nodePort: 30082}
    - {name: udp, port: 80, protocol: UDP, nodePort: 30082}
`

// empty wants clients of a Service that nobody serves to be told so, wherever they are.
func empty(t *testing.T, w *world) {
	w.apply(t, emptyService)
	if err := w.RunPod(t.Context(), server("asks", w.a)); err != nil {
		t.Fatal(err)
	}
	ask := append([]string{"talk", "ask"}, append(of("tcp", "80", "10.96.0.82", "fd00:10:96::82"), of("udp-connected", "80", "10.96.0.82", "fd00:10:96::82")...)...)
	outside := append([]string{w.a.Tool("kube/talk"), "ask"}, append(of("tcp", "30082", w.a.IPv4, w.a.IPv6), of("udp-connected", "30082", w.a.IPv4, w.a.IPv6)...)...)
	for from, run := range map[string]func() (string, error){
		"a pod": func() (string, error) { return w.Exec(t.Context(), "asks", ask...) },
		"the node": func() (string, error) {
			return w.a.Run(t.Context(), append([]string{w.a.Tool("kube/talk")}, ask[1:]...)...)
		},
		"outside": func() (string, error) { return w.RunOutside(t.Context(), outside...) },
	} {
		if err := w.WaitFor(t.Context(), "refusals for "+from, func() error {
			out, err := run()
			if err == nil || strings.Count(err.Error(), "connection refused") != 4 {
				err = fmt.Errorf("want 4 refusals: %s, %w", out, err)
			} else {
				err = nil
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
}

// hostPortPod answers on a port of its node.
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
      ports: [{containerPort: 8080, hostPort: 8088}, {containerPort: 8080, hostPort: 8088, protocol: UDP}]
`

// hostPort makes a pod with a host port anew: its name is the same, its address another.
func hostPort(t *testing.T, w *world) {
	client := kube.ServerAddresses()
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
		for _, network := range []string{"tcp", "udp"} {
			w.answers(t, "host-port 8080 "+client[0], of(network, "8088", w.a.IPv4)...)
			w.answers(t, "host-port 8080 "+client[1], of(network, "8088", w.a.IPv6)...)
		}
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
    - {name: main, image: "waggle.local/talk:1", imagePullPolicy: Never, command: [/bin/talk, serve, "-dns", web.default.svc.cluster.local=10.96.0.80, "5353"]}
---
apiVersion: v1
kind: Pod
metadata: {name: program}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers:
    - {name: main, image: "waggle.local/talk:1", imagePullPolicy: Never, command: [/bin/talk, serve, "8080"]}
`

// names has a pod do what most programs begin with: ask for a name, and find the API server by the Service kubernetes.
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
