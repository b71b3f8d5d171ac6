package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const explanation = `{"from":{"pod":"shop/web","address":"10.0.1.8","identity":300,"labels":["k8s:app=web"],"cidr":"10.0.0.0/8","cidr-identity":16777217},
"to":{"pod":"shop/cart","address":"10.0.1.7","endpoint":7,"identity":301},"port":"81/TCP","verdict":"denied","summary":"denied in ingress of the receiver",
"egress":{"message":"not an endpoint of this node"},"conntrack":["10.0.1.8:5 -> 10.0.1.7:81 TCP: opening"],
"ingress":{"here":true,"isolated":true,"verdict":"denied","message":"no rule allows it","audit":{"verdict":"allowed","decided-by":[{"policy":"NetworkPolicy shop/try","path":"spec.ingress[0]"}]},
"considered":[{"policy":"NetworkPolicy shop/cart","path":"spec.ingress[0]","text":"allows 80/TCP from k8s:app=web\u001b[2J"},
{"policy":"NetworkPolicy shop/try","path":"spec.ingress[0]","audit":true,"matches":true,"text":"allows all ports from all peers"}],
"near-misses":[{"text":"NetworkPolicy shop/cart spec.ingress[0] nearly allows it: it is for 80/TCP, not 81"}],
"kernel":{"policy-id":2,"verdict":"allowed","entry":"all peers, everything","message":"the maps say allowed, the policies denied"}}}`

const throughService = `{"from":{"pod":"shop/web","address":"10.0.1.8","identity":300},"to":{"address":"10.96.0.1"},"port":"80/TCP","verdict":"denied",
"summary":"denied towards 1 of 17 backends of service shop/cart at 10.96.0.1:80/TCP","egress":{"message":"see there"},"ingress":{"message":"see there"},
"service":{"name":"shop/cart","id":1,"frontend":"10.96.0.1:80/TCP","type":"ClusterIP","scope":"internal","backends":17,"missing":1,"message":"not in the kernel yet"},
"backends":[{"to":{"address":"10.0.9.9","identity":301},"port":"8080/TCP","verdict":"allowed","summary":"allowed by this node"},
{"to":{"pod":"shop/cart","address":"10.0.1.7","endpoint":7,"identity":301},"port":"8080/TCP","verdict":"denied","summary":"denied in ingress of the receiver",
"egress":{"message":"not an endpoint of this node"},"ingress":{"here":true,"verdict":"denied","message":"no rule allows it","audit":{"verdict":"denied"},
"kernel":{"agrees":true,"policy-id":2,"verdict":"denied"}},"conntrack-error":"give the address of the backend to see them"}]}`

const difference = `{"flows":3,"unknown":1,"since":"2026-01-02T03:04:05Z","replaced":["NetworkPolicy shop/cart"],
"problems":[{"policy":"Service x","reason":"Ignored","message":"it is no policy"}],
"denied":[{"from":{"address":"10.0.1.8"},"to":{"pod":"shop/cart"},"direction":"ingress","port":"80/TCP","count":3,"last":"2026-01-02T03:04:06Z","text":"isolated"}]}`

// TestPolicyOutput compares the text output of the policy commands.
func TestPolicyOutput(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "new.yaml")
	if err := os.WriteFile(file, []byte("kind: NetworkPolicy"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := serve(t, fakeAPI{
		"GET /v1/config": `{}`,
		"GET /statedb/dump/policies": `{"policies":[{"ref":{"kind":"NetworkPolicy","namespace":"shop","name":"cart"},"audit":true,"subjects":2,
"parts":[{"rules":[{"path":"spec.ingress[0]"}]}],"problems":[{"path":"spec.ingress[0]","reason":"Unsupported","message":"\u001b[2J grants nothing"}]}]}`,
		"GET /v1/policy/selectors": `[{"selector":"k8s:app=web","users":1,"identities":[1,2,3,4,5,6,7,8,9,10,11,12,13]}]`,
		"GET /v1/policy/explain":   explanation,
		"POST /v1/policy/what-if":  difference,
		"GET /statedb/dump/policy-entries": `{"policy-entries":[{"id":2,"shape":3,"entries":5,"ranges":1,"users":2,"policies":["NetworkPolicy shop/cart"],
"status":{"kind":"Done","updated-at":"2026-01-02T03:04:05Z","id":1}}]}`,
		"GET /v1/map/policy": `{"cache":[{"key":"policy=2 identity=300 kind=1 protocol=6 port=80 port_bits=16","value":"rule=1 deny=0"},
{"key":"policy=2 identity=3 kind=4 protocol=0 port=0 port_bits=0","value":"rule=1 deny=0"},{"key":"policy=2 identity=4 kind=4 protocol=6 port=0 port_bits=0","value":"rule=1 deny=1"},
{"key":"policy=2 identity=5 kind=4 protocol=0 port=0 port_bits=0","value":"rule=1 deny=0"},
{"key":"policy=3 identity=0 kind=0 protocol=0 port=0 port_bits=0","value":"rule=2 deny=0"}]}`,
		"GET /statedb/dump/policy-classes":    `{"policy-classes":[{"number":3,"labels":{"k8s:io.kubernetes.pod.namespace":""}},{"number":4,"namespace":"shop"}]}`,
		"GET /v1/map/policy_ranges":           `{"cache":[{"key":"prefixlen=90 policy=2 identity=16777217 kind=3 protocol=17 port=1024","value":"rule=1 deny=1"}]}`,
		"GET /statedb/dump/named-cidrs":       `{"named-cidrs":[{"prefix":"192.0.2.0/24","identity":16777217,"status":{"kind":"Done","updated-at":"2026-01-02T03:04:05Z","id":1}}]}`,
		"GET /v1/endpoint/7":                  `{"id":7}`,
		"GET /v1/endpoint/6":                  `{"id":6}`,
		"GET /v1/endpoint/8":                  `{"id":8}`,
		"GET /v1/endpoint/pod-name:shop/cart": `{"id":7}`,
		"GET /statedb/dump/endpoint-policies": `{"endpoint-policies":[{"endpointID":7,"attachment":"a","identity":301,"ingress":{"enforced":{"id":2,"shape":1}},
"egress":{"enforced":{"id":1,"shape":0}},"revision":1},
{"endpointID":6,"attachment":"b","identity":302,"ingress":{"enforced":{"id":1,"shape":0}},"egress":{"enforced":{"id":4,"shape":0}},"revision":1}]}`,
	})
	through := serve(t, fakeAPI{"GET /v1/policy/explain": throughService})
	for _, tc := range []struct{ args, want string }{
		{"policy list", "POLICY                   MODE   SUBJECTS  RULES  NOT ENFORCED\nNetworkPolicy shop/cart  audit  2         1      1\n" +
			"NetworkPolicy shop/cart spec.ingress[0]: Unsupported: \\x1b[2J grants nothing\n"},
		{"policy selectors", "SELECTOR     USERS  COUNT  IDENTITIES\nk8s:app=web  1      13     1,2,3,4,5,6,7,8,9,10,11,12,...\n"},
		{"policy explain --from shop/web --to shop/cart --port 81/TCP", `DENIED in ingress of the receiver

From:  shop/web, 10.0.1.8, identity 300 [k8s:app=web], in 10.0.0.0/8 (16777217)
To:    shop/cart, 10.0.1.7, endpoint 7, identity 301 []
Port:  81/TCP

Egress of the sender: not evaluated: not an endpoint of this node

Ingress of the receiver: denied
  no rule allows it
  audit: it would be allowed if policies in audit mode counted: NetworkPolicy shop/try spec.ingress[0]
  rules considered:
    - NetworkPolicy shop/cart spec.ingress[0]: allows 80/TCP from k8s:app=web\x1b[2J
    * NetworkPolicy shop/try spec.ingress[0] (audit): allows all ports from all peers
  other rules that nearly allow it:
    NetworkPolicy shop/cart spec.ingress[0] nearly allows it: it is for 80/TCP, not 81
  kernel: DIFFERS: policy 2, allowed: all peers, everything: the maps say allowed, the policies denied

Known connections:
  10.0.1.8:5 -> 10.0.1.7:81 TCP: opening
`},
		{"policy explain --from shop/web --to 10.96.0.1 --port 80/TCP --host unix://" + through, `DENIED towards 1 of 17 backends of service shop/cart at 10.96.0.1:80/TCP

From:  shop/web, 10.0.1.8, identity 300 []
To:    10.96.0.1, identity 0 []
Port:  80/TCP

Service:  shop/cart at 10.96.0.1:80/TCP (ClusterIP), for internal clients: 17 backends
  kernel: not in the kernel yet
  10.0.9.9 8080/TCP: allowed by this node
  shop/cart 10.0.1.7 8080/TCP: denied in ingress of the receiver
  and 1 that are no longer known
  and 14 more, which were not evaluated

Towards shop/cart, 10.0.1.7, endpoint 7, identity 301 [], port 8080/TCP:

Egress of the sender: not evaluated: not an endpoint of this node

Ingress of the receiver: denied
  no rule allows it
  kernel: agrees: policy 2, denied: no entry matches

Known connections:
  not read: give the address of the backend to see them
`},
		{"policy what-if -f " + file, `replaces NetworkPolicy shop/cart
Service x: Ignored: it is no policy
Evaluated 3 flows of this node, recorded since 2026-01-02T03:04:05Z.
1 more were skipped, because their endpoints or peers no longer exist.

1 would be DENIED:
FROM      TO         FAMILY  PORT    DIRECTION  COUNT  LAST                  WHY
10.0.1.8  shop/cart  IPv4    80/TCP  ingress    3      2026-01-02T03:04:06Z  isolated
`},
		{"bpf policy list", "ID  ENTRIES  RANGES  USERS  POLICIES                 STATUS\n2   5        1       2      NetworkPolicy shop/cart  Done\n"},
		{"bpf policy get", "ID  POLICY  DIRECTION  PEER                       PORT/PROTO\n2   Allow   -          all pods                   ANY\n" +
			"2   Allow   -          class 5                    ANY\n2   Allow   -          identity 300               80/TCP\n" +
			"2   Deny    -          namespace shop             ANY/TCP\n" +
			"2   Deny    -          outside CIDR 192.0.2.0/24  1024-1087/UDP\n3   Allow   -          all peers                  ANY\n"},
		{"bpf policy get 6", "ID  POLICY  DIRECTION  PEER       PORT/PROTO\n1   Allow   ingress    all peers  ANY\n4   Allow   egress     no peer    ANY\n"},
		{"bpf policy get 7", "ID  POLICY  DIRECTION  PEER                       PORT/PROTO\n1   Allow   egress     all peers                  ANY\n" +
			"2   Allow   ingress    all pods                   ANY\n2   Allow   ingress    class 5                    ANY\n" +
			"2   Allow   ingress    identity 300               80/TCP\n2   Deny    ingress    namespace shop             ANY/TCP\n" +
			"2   Deny    ingress    outside CIDR 192.0.2.0/24  1024-1087/UDP\n"},
		{"bpf policy get shop/cart", "ID  POLICY  DIRECTION  PEER                       PORT/PROTO\n1   Allow   egress     all peers                  ANY\n" +
			"2   Allow   ingress    all pods                   ANY\n2   Allow   ingress    class 5                    ANY\n" +
			"2   Allow   ingress    identity 300               80/TCP\n2   Deny    ingress    namespace shop             ANY/TCP\n" +
			"2   Deny    ingress    outside CIDR 192.0.2.0/24  1024-1087/UDP\n"},
	} {
		code, out, errs := run(t, socket, strings.Fields(tc.args)...)
		if code != 0 || out != tc.want {
			t.Errorf("%s: exit %d\ngot  %s\nwant %s\n%s", tc.args, code, out, tc.want, errs)
		}
	}
	if code, out, errs := run(t, socket, "policy", "get", "shop/cart"); code != 0 || !strings.Contains(out, `"name": "cart"`) {
		t.Errorf("policy get: exit %d, %s%s", code, out, errs)
	}
	for _, tc := range []struct {
		args, stderr string
		code         int
	}{
		{"policy get shop/none", "waggle: there is no policy shop/none: waggle policy list shows the existing ones\n", exitFailed},
		{"policy explain --from shop/web --to shop/cart", "waggle: set --from, --to and --port, as in waggle policy explain " +
			"--from shop/cart --to 10.0.1.7 --port 80/TCP\n", exitUsage},
		{"policy what-if", "waggle: set -f FILE or --delete\n", exitUsage},
		{"policy what-if -f " + file + ".not", "waggle: read policies: open " + file + ".not: no such file or directory\n", exitFailed},
		{"bpf policy get 8", "waggle: endpoint 8 has no policy yet: the kernel drops all its packets\n", exitFailed},
		{"bpf policy get 9", "waggle: there is no endpoint 9 on this node: waggle endpoint list shows the existing ones\n", exitFailed},
	} {
		if code, _, errs := run(t, socket, strings.Fields(tc.args)...); code != tc.code || errs != tc.stderr {
			t.Errorf("%s: exit %d, %s", tc.args, code, errs)
		}
	}
}

// Policy objects do not show the features that a node's flags disable, so the list reports them separately.
func TestPolicyList_ReportsDisabledFeatures(t *testing.T) {
	t.Parallel()
	const one = `{"policies":[{"ref":{"kind":"NetworkPolicy","namespace":"shop","name":"cart"},"subjects":2}]}`
	const (
		never  = "no policy is enforced on this node (--enable-policy=never)"
		k8s    = "NetworkPolicies are ignored on this node (--enable-k8s-networkpolicy=false)"
		cilium = "CiliumNetworkPolicies and CiliumClusterwideNetworkPolicies are ignored on this node (--enable-cilium-network-policy=false)"
	)
	for name, tc := range map[string]struct {
		config, mode string
		want         []string
	}{
		"nothing": {`{"status":{"realized":{"policy-enforcement":"default"},"daemonConfigurationMap":{"enable-k8s-networkpolicy":true,"enable-cilium-network-policy":true}}}`,
			"enforce", nil},
		"everything": {`{"status":{"realized":{"policy-enforcement":"never"}}}`, "off", []string{never}},
		"both kinds": {`{"status":{"realized":{"policy-enforcement":"always"},"daemonConfigurationMap":{"enable-k8s-networkpolicy":false,"enable-cilium-network-policy":false}}}`,
			"enforce", []string{k8s, cilium}},
	} {
		socket := serve(t, fakeAPI{"GET /statedb/dump/policies": one, "GET /v1/config": tc.config, "GET /v1/healthz": healthy, "GET /v1/endpoint": `[]`,
			"GET /statedb/dump/self-tests": `{"self-tests":[]}`, "GET /statedb/dump/drift-repairs": `{"drift-repairs":[]}`, "GET /statedb/dump/bpf-programs": `{"bpf-programs":[]}`,
			"GET /statedb/dump/path-tests": `{"path-tests":[]}`, "GET /statedb/dump/node-views": `{"node-views":[]}`, "GET /statedb/dump/node-paths": `{"node-paths":[]}`,
			"GET /statedb/dump/configs": `{"configs":[]}`})
		_, out, errs := run(t, socket, "policy", "list")
		if lines := strings.Split(strings.TrimSpace(out), "\n"); errs != "" || len(lines) < 2 || strings.Fields(lines[1])[2] != tc.mode || !slices.Equal(lines[2:], tc.want) {
			t.Errorf("%s: %s%s", name, out, errs)
		}
		_, out, errs = run(t, socket, "status")
		if want := strings.Join(append([]string{"1"}, tc.want...), "; "); errs != "" || !strings.Contains(out, "  "+want+"\n") {
			t.Errorf("%s: want %q in\n%s%s", name, want, out, errs)
		}
	}
}
