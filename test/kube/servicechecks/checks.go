package servicechecks

import (
	"errors"
	"fmt"
	"slices"
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

// Local tests externalTrafficPolicy Local with one server on node B: the server sees the client's address, node A drops requests, and the health check ports
// tell load balancers which node to use.
func Local(t *testing.T, w *World) {
	w.ApplyManifest(t, localService)
	w.Balance(t, "local", "VIP", balancerIPv4, balancerIPv6)
	w.RouteTo(t, w.B, balancerIPv4, balancerIPv6)
	if err := w.RunPod(t.Context(), kube.Server("local", w.B)); err != nil {
		t.Fatal(err)
	}
	w.CheckReplies(t, w.FromOutside(t), "local", kube.ServerAddresses(), append(kube.BothTargets("30090", w.B.IPv4, w.B.IPv6), kube.BothTargets("80", balancerIPv4, balancerIPv6)...)...)
	// A connected UDP socket would report an ICMP error.
	nothing := append(kube.Targets("tcp", "30090", w.A.IPv4, w.A.IPv6), kube.Targets("udp-connected", "30090", w.A.IPv4, w.A.IPv6)...)
	w.Known(t, w.A, nothing...)
	if err := kube.Silent(w.FromOutside(t), nothing...); err != nil {
		t.Error(err)
	}
	for node, want := range map[*kube.Node]string{w.A: "503", w.B: "200"} {
		if err := w.WaitFor(t.Context(), "the health check port of "+node.Name, func() error {
			out, err := w.RunOutside(t.Context(), "sh", "-c", "printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' | busybox nc -w 15 "+node.IPv4+" 30099")
			if err == nil && !strings.Contains(out, " "+want+" ") {
				err = fmt.Errorf("want %s: %s", want, out)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
}

// Affinity tests that a client reaches the same server in all connections to one address, regardless of the protocol. The servers are the pods with the label
// stays: "true". The pods "one" on node A and "three" on another node run the program talk and are clients.
func Affinity(t *testing.T, w *World) {
	cluster := w.Service(t, "affinity", "NodePort", 83, `stays: "true"`, "sessionAffinity: ClientIP")
	inside, nodes := kube.BothTargets("80", cluster...), kube.BothTargets("30083", w.A.IPv4, w.A.IPv6, w.B.IPv4, w.B.IPv6)
	served := map[string]bool{}
	for _, client := range []struct {
		who     string
		from    kube.Requester
		targets []string
	}{{"a pod", w.FromPod(t, "one"), inside}, {"another pod", w.FromPod(t, "three"), inside}, {"a node", w.FromNode(t, w.A), inside}, {"outside", w.FromOutside(t), nodes}} {
		request := func(targets []string) (answers []string) {
			if err := w.WaitFor(t.Context(), "answers for "+client.who, func() (err error) { answers, err = client.from(targets...); return err }); err != nil {
				t.Fatal(err)
			}
			return answers
		}
		// Each of several concurrent requests can be the first one.
		first := request(client.targets)
		const questions = 10
		var again []string
		for _, target := range client.targets {
			again = append(again, slices.Repeat([]string{target}, questions)...)
		}
		for i, answer := range request(again) {
			had, _, _ := strings.Cut(first[i/questions], " ")
			if now, _, _ := strings.Cut(answer, " "); now != had {
				t.Errorf("%s came to %s and then to %s by %s", client.who, had, now, again[i])
			}
			served[had] = true
		}
	}
	if len(served) < 2 {
		t.Errorf("all clients came to %v", served)
	}
}

// webAddress is the address of the name web in the server of [Names].
const webAddress = "10.96.0.80"

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
  nodeName: %[1]s
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  containers:
    - {name: main, image: "waggle.local/talk:1", imagePullPolicy: Never, resources: {requests: {cpu: 20m}}, command: [/bin/talk, serve, "-dns", web.default.svc.cluster.local=%[3]s, "5353"]}
---
apiVersion: v1
kind: Pod
metadata: {name: program}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 0
  containers:
    - {name: main, image: "waggle.local/talk:1", imagePullPolicy: Never, resources: {requests: {cpu: 20m}}, command: [/bin/talk, serve, "8080"]}
`

// Names tests name resolution in a pod of node A by a server on node B, and access to the API server through the Service kubernetes, which most programs need first.
func Names(t *testing.T, w *World) {
	w.ApplyManifest(t, nameService, w.B.Name, w.A.Name, webAddress)
	if err := errors.Join(w.WaitPodReady(t.Context(), "default/program"), w.WaitPodReady(t.Context(), "kube-system/dns")); err != nil {
		t.Fatal(err)
	}
	if err := w.WaitFor(t.Context(), "the name to be found", func() error {
		out, err := w.Exec(t.Context(), "program", "talk", "resolve", "web")
		if err == nil && strings.TrimSpace(out) != "["+webAddress+"]" {
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
