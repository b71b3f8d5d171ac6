package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// TestBodies compares replies with the bodies that Cilium's clients expect.
func TestBodies(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, tc := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"GET", "/v1/nothing", "", 404, `{"code":404,"message":"path \"/v1/nothing\" was not found"}`},
		{"GET", "/", "", 404, `{"code":404,"message":"path \"/\" was not found"}`},
		{"PUT", "/v1/config", "{}", 405, `{"code":405,"message":"method \"PUT\" is not allowed, but [GET,HEAD,PATCH] are"}`},
		{"GET", "/v1/endpoint/9", "", 404, ""},
		{"GET", "/v1/endpoint/x-y", "", 400, `"endpoint id \"x-y\": invalid request: want a number from 0 to 65535, or a prefix as in pod-name:namespace/pod"`},
		{"GET", "/v1/endpoint/cilium-global:a:b:1", "", 400, `"endpoint id \"cilium-global:a:b:1\": unsupported endpoint id prefix: cilium-global names endpoints of other nodes"`},
		{"GET", "/v1/endpoint/7/log", "", 200, `[{"code":"ok","message":"in the kernel","state":"ready","timestamp":"2026-01-02T03:04:06Z"},` +
			`{"code":"failed","message":"attach: busy","state":"regenerating","timestamp":"2026-01-02T03:04:05Z"}]`},
		{"GET", "/v1/endpoint/pod-name:shop%2Fcart/healthz", "", 200, `{"bpf":"OK","connected":true,"overallHealth":"OK","policy":"OK"}`},
		{"GET", "/v1/endpoint/cni-attachment-id:c7:eth0/labels", "", 200, `{"spec":{"user":["unspec:tier=db"]},"status":{"derived":["k8s:app=cart"],` +
			`"realized":{"user":["unspec:tier=db"]},"security-relevant":["reserved:init"]}}`},
		{"GET", "/v1/endpoint", `["k8s:app=other"]`, 404, ""},
		{"GET", "/v1/endpoint", `["k8s:app=cart"]`, 200, `[{"id":7,"spec":...`},
		{"GET", "/v1/endpoint", `["reserved:init"]`, 200, `[{"id":7,"spec":...`},
		{"GET", "/v1/endpoint", `["reserved:init","k8s:app=other"]`, 404, ""},
		{"GET", "/v1/endpoint", `{"a":1}`, 400, `{"code":400,"message":"body: json: cannot unmarshal object into Go value of type []string"}`},
		{"DELETE", "/v1/endpoint", `{"container-id":"nobody"}`, 404, ""},
		{"DELETE", "/v1/endpoint", `{}`, 400, `"container-id: missing"`},
		{"PATCH", "/v1/config", `{"options":{"Debug":"Disabled"}}`, 200, ""},
		{"PATCH", "/v1/config", `{"options":{"Debug":"Enabled"}}`, 400, `"options.Debug: is Disabled and cannot be changed while the agent runs"`},
		{"PATCH", "/v1/config", `{"policy-enforcement":"default"}`, 200, ""},
		{"PATCH", "/v1/config", `{"policy-enforcement":"never"}`, 400,
			`"policy-enforcement: is default and cannot be changed while the agent runs; set --enable-policy"`},
		{"PATCH", "/v1/config", `{"options":{"\u001b[2J":"x"}}`, 400, `"options.\"\\x1b[2J\": there is no such option that can be changed"`},
		{"PATCH", "/v1/endpoint/7/labels", `{"user":["unspec:a=b"]}`, 200, ""},
		{"PATCH", "/v1/endpoint/7", `{"container-id":"c7","interface-index":12,"mac":"02:00:00:00:00:02","addressing":{"ipv4":"10.0.1.7"}}`, 200, ""},
		{"PATCH", "/v1/endpoint/7", `{"interface-index":13}`, 400,
			`"invalid request: interface-index: is \"12\" and cannot be changed; delete the endpoint and create it again"`},
		{"PATCH", "/v1/endpoint/7", `{"addressing":{"ipv6":"fd00:1::8"}}`, 400, `"invalid request: addressing.ipv6: is \"fd00:1::7\" and cannot...`},
		{"PATCH", "/v1/endpoint/7", `{"labels":["a:b=c"]}`, 400, `"invalid request: labels: use PATCH /endpoint/{id}/labels"`},
		{"PATCH", "/v1/endpoint/7", `{"mac":"no"}`, 400, `"invalid request: mac: \"no\": want an Ethernet address"`},
		{"PATCH", "/v1/endpoint/9", `{}`, 404, ""},
		{"GET", "/v1/map", "", 200, `{"maps":[{"path":"/bpf/bpf_links_v1"}]}`},
		{"GET", "/v1/map/bpf_links", "", 200, `{"cache":[{"desired-action":"ok","key":"12","value":"7"}],"path":"/bpf/bpf_links_v1"}`},
		{"GET", "/v1/map/bpf_links_v1", "", 200, `{"cache":[{"desired-action":"ok","key":"12","value":"7"}],"path":"/bpf/bpf_links_v1"}`}, // the name of its pin
		{"GET", "/v1/map/none", "", 404, ""},
		{"GET", "/v1/identity", "", 200, `[{"id":5,"labels":["reserved:init"]},{"id":300,"labels":["k8s:app=web"]},` +
			`{"id":16777217,"labels":["cidr:203.0.113.0/24","reserved:world-ipv4"]}]`},
		{"GET", "/v1/identity/16777217", "", 200, `{"id":16777217,"labels":["cidr:203.0.113.0/24","reserved:world-ipv4"]}`},
		{"GET", "/v1/ip", "", 200, `[{"cidr":"10.0.1.8/32","hostIP":"192.0.2.2","identity":300,"metadata":{"name":"web","namespace":"shop",` +
			`"source":"custom-resource"}},{"cidr":"203.0.113.0/24","identity":16777217,"metadata":{"source":"policy"}}]`},
		{"GET", "/v1/ip?cidr=10.0.0.0/8", "", 200, `[{"cidr":"10.0.1.8/32","hostIP":"192.0.2.2","identity":300,"metadata":{"name":"web",` +
			`"namespace":"shop","source":"custom-resource"}}]`},
		{"GET", "/v1/ip?cidr=203.0.113.0/24", "", 200, `[{"cidr":"203.0.113.0/24","identity":16777217,"metadata":{"source":"policy"}}]`},
		{"GET", "/v1/ip?cidr=10.0.1.9", "", 404, ""},
		{"GET", "/v1/ip?cidr=web", "", 400, `"cidr \"web\": want an address or a prefix, as 10.0.0.7 or 10.0.0.0/8"`},
		{"GET", "/v1/identity/300", "", 200, `{"id":300,"labels":["k8s:app=web"]}`},
		{"GET", "/v1/identity/301", "", 404, ""},
		{"GET", "/v1/identity/web", "", 400, `"identity \"web\": want a number"`},
		{"GET", "/v1/identity/endpoints", "", 200, `[{"identity":{"id":5,"labels":["reserved:init"]},"refCount":1}]`},
		{"GET", "/v1/policy", "", 200, `{"policy":"[{\"ref\":{\"kind\":\"NetworkPolicy\",\"namespace\":\"shop\",\"name\":\"cart\"},...`},
		{"PUT", "/v1/policy", "[]", 501, `"policies are not written over this API: they come from Kubernetes (kubectl apply), ...`},
		{"DELETE", "/v1/policy", "", 501, `"policies are not written over this API: ...`},
		{"GET", "/v1/policy/selectors", "", 200, `[{"identities":[300],"labels":[{"key":"io.cilium.k8s.policy.derived-from","source":"k8s","value":"NetworkPolicy"},` +
			`{"key":"io.cilium.k8s.policy.name","source":"k8s","value":"cart"},{"key":"io.cilium.k8s.policy.namespace","source":"k8s","value":"shop"}],` +
			`"selector":"k8s:app=web","users":1}]`},
		{"GET", "/v1/policy/explain?from=10.0.1.8&to=shop/cart", "", 422, `{"code":422,"message":"Query argument port is required, but not found"}`},
		{"GET", "/v1/policy/explain?from=10.0.1.8&to=shop/cart&port=80", "", 400, `"port \"80\": want PORT/PROTOCOL as in 80/TCP;...`},
		{"GET", "/v1/policy/explain?from=unknown&to=shop/cart&port=80/TCP", "", 400, `"\"unknown\": want an address, NAMESPACE/POD or id:NUMBER"`},
		{"GET", "/v1/policy/explain?from=id:7000&to=shop/cart&port=80/TCP", "", 404, `"identity 7000: not known on this node; see waggle identity list"`},
		{"GET", "/v1/policy/explain?from=shop/none&to=shop/cart&port=80/TCP", "", 404, `"pod shop/none: not known on this node; give its address"`},
		{"POST", "/v1/policy/what-if", `{"manifests":"kind: NetworkPolicy\nmetadata: [1]"}`, 400, `"line 1: json: cannot unmarshal array...`},
		{"POST", "/v1/policy/what-if", `{"delete":["shop/none"]}`, 400, `"delete \"shop/none\": there is no such policy on this node; see waggle policy list"`},
		{"POST", "/v1/policy/what-if", `{}`, 200, `{"flows":1,"since":"2026-01-02T03:04:05Z"}`},
		{"POST", "/v1/policy/what-if", `{"manifests":"apiVersion: v1\nkind: Service\nmetadata: {name: x}"}`, 200, `{"flows":1,"problems":[{"message":"it is no policy, and was left out",` +
			`"policy":"Service x","reason":"Ignored"}],"since":"2026-01-02T03:04:05Z"}`},
		{"GET", "/v1/service/1", "", 200, `{"spec":` + webService + `,"status":{"realized":` + webService + `}}`},
		{"GET", "/v1/service", "", 200, `[{"spec":` + webService + `,"status":{"realized":` + webService + `}},...`},
		{"GET", "/v1/service/2", "", 200, `{"spec":{"backend-addresses":[` + cartBackend + `],"flags":{"extTrafficPolicy":"Local",` +
			`"healthCheckNodePort":32000,"intTrafficPolicy":"Cluster","name":"web","namespace":"shop","trafficPolicy":"Local","type":"NodePort"},` +
			`"frontend-address":{"ip":"192.0.2.1","port":30080,"protocol":"TCP","scope":"external"},"id":2}}`},
		{"GET", "/v1/service/3", "", 404, ""},
		{"GET", "/v1/service/web", "", 400, `{"code":400,...`},
		{"PUT", "/v1/service/1", "{}", 501, `"services are not written over this API: they come from Kubernetes (kubectl apply), ...`},
		{"DELETE", "/v1/service/1", "", 501, `"services are not written over this API: ...`},
		{"GET", "/v1/node/ids", "", 200, `[{"id":0,"ips":["192.0.2.1"]},{"id":1,"ips":["192.0.2.2","10.0.2.1","10.0.2.9"]},{"id":2,"ips":[]}]`},
		{"GET", "/statedb/dump/none", "", 404, `{"code":404,"message":"table \"none\" was not found"}`},
		{"GET", "/statedb/changes/none", "", 404, `{"code":404,"message":"table \"none\" was not found"}`},
		{"GET", "/statedb/dump/mtus", "", 200, "{\n  \"mtus\": [\n..."},
		{"GET", "/statedb/query", `{"table":"mtus","index":"color","key":""}`, 400,
			`{"rev":0,"obj":null,"err":"table mtus has no index \"color\": use one of __revision__, prefix"}`},
		{"GET", "/statedb/query", `{"table":"mtus","index":"","key":""}`, 400, `{"rev":0,"obj":null,"err":"table mtus has no index...`},
		{"GET", "/statedb/query", `{"table":"none","index":"id","key":""}`, 404, `{"rev":0,"obj":null,"err":"Table...`},
		{"GET", "/statedb/query", `{"table":"mtus","index":"__revision__","lowerbound":true,"key":"AAAAAAAAAAA="}`, 200, `{"rev":1,"obj":...`},
		{"POST", "/statedb/dump", "", 405, `{"code":405,"message":"method \"POST\" is not allowed, but [GET,HEAD] are"}`},
	} {
		t.Run(tc.method+" "+tc.path, func(t *testing.T) {
			f.t = t
			f.expect(f.request(tc.method, tc.path, tc.body), tc.code, tc.want)
		})
	}
}

func TestWrongMethod_ListsAllowedMethods(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if got := f.request("POST", "/v1/endpoint/7", "").Header.Get("Allow"); got != "DELETE, GET, HEAD, PATCH, PUT" {
		t.Errorf("Allow: %q", got)
	}
}

func TestConfig_ReportsPluginSettings(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	whole, minimal := read(t, f.request("GET", "/v1/config", "")), read(t, f.request("GET", "/v1/config", "", "Prefer", "return=minimal"))
	for _, want := range []string{
		`"addressing":{"ipv4":{"alloc-range":"10.0.1.0/24","enabled":true,"ip":"10.0.1.1"},"ipv6":{"alloc-range":"fd00:1::/64","enabled":true,"ip":"fd00:1::1"}}`,
		`"deviceMTU":1500`, `"routeMTU":1450`, `"datapathMode":"veth"`, `"ipam-mode":"kubernetes"`, `"state":"ready"`,
	} {
		if !strings.Contains(whole, want) || !strings.Contains(minimal, want) {
			t.Errorf("%s is missing in %s or in %s", want, whole, minimal)
		}
	}
	for _, more := range []string{`"SourceIPVerification"`, `"policy-enforcement":"default"`} {
		if !strings.Contains(whole, more) || strings.Contains(minimal, more) {
			t.Errorf("%s should be in %s and not in %s", more, whole, minimal)
		}
	}
}

func TestIPAM(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const given = `{"address":{"ipv4":"10.0.1.8","ipv4-pool-name":"default"},"host-addressing":{"ipv4":{"alloc-range":"10.0.1.0/24","enabled":true,` +
		`"ip":"10.0.1.1"},"ipv6":{"alloc-range":"fd00:1::/64","enabled":true,"ip":"fd00:1::1"}},` +
		`"ipv4":{"cidrs":["10.0.1.0/24"],"expiration-uuid":"u-4","gateway":"10.0.1.1","ip":"10.0.1.8"}}`
	f.expect(f.request("POST", "/v1/ipam?family=ipv4&owner=shop%2Fcart", "", "expiration", "true"), 201, given)
	if got := f.allocator.asked[0]; got != (ipam.Request{IPv4: true, Owner: "shop/cart", Expire: true}) {
		t.Errorf("asked for %+v", got)
	}
	f.expect(f.request("POST", "/v1/ipam", ""), 201, given)
	if got := f.allocator.asked[1]; got != (ipam.Request{}) {
		t.Errorf("asked for %+v", got)
	}
	f.expect(f.request("POST", "/v1/ipam?family=ipx", ""), 422, `{"code":422,"message":"family in query: \"ipx\": want ipv4 or ipv6"}`)
	f.expect(f.request("POST", "/v1/ipam", "", "expiration", "perhaps"), 400, `{"code":400,"message":"Invalid format for parameter expiration: ...`)
	f.expect(f.request("DELETE", "/v1/ipam/10.0.1.200?pool=default", ""), 200, "")
	f.expect(f.request("DELETE", "/v1/ipam/fd00:1::9", ""), 200, "")
	f.expect(f.request("DELETE", "/v1/ipam/nonsense", ""), 400, `"ip in path: \"nonsense\": want an IPv4 or IPv6 address"`)
	if len(f.allocator.freed) != 2 || len(f.allocator.asked) != 2 {
		t.Errorf("freed %v, asked %v", f.allocator.freed, f.allocator.asked)
	}
	f.allocator.fail = fmt.Errorf("allocate: %w: 254 used", ipam.ErrExhausted)
	f.expect(f.request("POST", "/v1/ipam", ""), 502, `"allocate: range is full: 254 used"`)
	f.expect(f.request("POST", "/v1/ipam/10.0.1.9", ""), 500, `"allocate: range is full: 254 used"`)
	f.expect(f.request("DELETE", "/v1/ipam/10.0.1.9", ""), 500, `"allocate: range is full: 254 used"`)
}

// put is a request of the CNI plugin.
const put = `{"container-id":"c8","container-interface-name":"eth0","interface-name":"lxcaaaaaaaaaaaa","interface-index":13,
 "mac":"02:00:00:00:00:04","host-mac":"02:00:00:00:00:03","addressing":{"ipv4":"10.0.1.8","ipv4-expiration-uuid":"u-4"},
 "k8s-pod-name":"cart","k8s-namespace":"shop","netns-cookie":"42","sync-build-endpoint":true,"state":"waiting-for-identity",
 "properties":{"netns-path":"/run/netns/x","netns-inode":"4026532000"},"a-field-of-tomorrow":[1]}`

func TestPut_PassesRequestToManager(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.expect(f.request("PUT", "/v1/endpoint/cilium-local:0", put, "Content-Type", "application/json"), 201, `{"id":8,"spec":...`)
	want := endpoint.Request{ContainerID: "c8", IfName: "eth0", NetnsPath: "/run/netns/x", NetnsCookie: 42, NetnsInode: 4026532000,
		HostIfName: "lxcaaaaaaaaaaaa", HostIfIndex: 13, HostMAC: mac.Addr{2, 0, 0, 0, 0, 3}, PodMAC: mac.Addr{2, 0, 0, 0, 0, 4},
		IPv4: netip.MustParseAddr("10.0.1.8"), IPv4UUID: "u-4", K8sNamespace: "shop", K8sPodName: "cart", Wait: true}
	if got := f.manager.created; len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestPut_BadBody_RejectedWithoutSideEffects(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	large := `{"k8s-pod-name":"` + strings.Repeat("x", maxBody) + `"}`
	for name, tc := range map[string]struct {
		body, kind string
		code       int
		want       string
	}{
		"empty":        {"", "", 400, `{"code":400,"message":"body: missing, want JSON"}`},
		"truncated":    {`{"container-id":"c","addressing":{"ipv4":"10.0`, "", 400, `{"code":400,"message":"body: unexpected end of JSON input in or after field \"addressing.ipv4\", at byte 46"}`},
		"garbage":      {`{"container-id":"c",]`, "", 400, `{"code":400,"message":"body: invalid character ']' looking for beginning of object key string in or after field \"container-id\", at byte 21"}`},
		"trailing":     {`{} {}`, "", 400, `{"code":400,"message":"body: invalid character '{' after top-level value at byte 4"}`},
		"wrong type":   {`{"addressing":{"ipv4":17}}`, "", 400, `{"code":400,"message":"body: field \"addressing.ipv4\": is a JSON number, want string"}`},
		"too large":    {large, "", 413, `{"code":413,"message":"body: larger than 1048576 bytes"}`},
		"other type":   {`{}`, "text/xml", 415, `{"code":415,"message":"body: content type \"text/xml\": want application/json"}`},
		"bad fields":   {`{"mac":"no","addressing":{"ipv6":"x"},"properties":{"netns-inode":"-1"}}`, "", 400, `"invalid request: properties.netns-inode: \"-1\": want a decimal number\nmac: \"no\": want an Ethernet address\naddressing.ipv6: \"x\": want an IP address"`},
		"bad property": {`{"properties":{"netns-path":7}}`, "", 400, `"invalid request: properties.netns-path: want a string"`},
	} {
		t.Run(name, func(t *testing.T) {
			f.t = t
			f.expect(f.request("PUT", "/v1/endpoint/cilium-local:0", tc.body, "Content-Type", tc.kind), tc.code, tc.want)
		})
	}
	if len(f.manager.created) != 0 {
		t.Errorf("endpoints were made: %+v", f.manager.created)
	}
}

func TestPut_StatusOfErrors(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, tc := range []struct {
		err  error
		code int
	}{
		{endpoint.ErrExists, 400}, {endpoint.ErrInvalid, 400}, {ipam.ErrExpired, 400}, {ipam.ErrTaken, 400},
		{endpoint.ErrNotReady, 500}, {errors.New("disk full"), 500},
	} {
		f.manager.fail = fmt.Errorf("create: %w", tc.err)
		f.expect(f.request("PUT", "/v1/endpoint/cilium-local:0", put), tc.code, `"create: `+tc.err.Error()+`"`)
	}
}

func TestDelete_PartialErrors_AreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.manager.fail = errors.Join(errPartly, errors.New("release 10.0.1.7: not allocated"))
	f.expect(f.request("DELETE", "/v1/endpoint/7", ""), http.StatusPartialContent, "2")
	f.expect(f.request("DELETE", "/v1/endpoint/7", ""), 404, "")
	f.manager.insert(pod())
	f.manager.fail = errors.New("nothing was done")
	f.expect(f.request("DELETE", "/v1/endpoint/7", ""), 500, `"nothing was done"`)
	f.manager.fail = nil
	f.expect(f.request("DELETE", "/v1/endpoint", `{"container-id":"c7"}`), 200, "")
}

func TestClusterNodes_ReportsChangesOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ask := func(id string) (status models.ClusterNodeStatus, added, removed string) {
		t.Helper()
		if err := json.Unmarshal([]byte(read(t, f.request("GET", "/v1/cluster/nodes", "", "client-id", id))), &status); err != nil {
			t.Fatal(err)
		}
		names := func(elements []models.NodeElement) (text string) {
			for _, e := range elements {
				text += e.Name + " "
			}
			return text
		}
		return status, names(status.NodesAdded), names(status.NodesRemoved)
	}
	first, added, removed := ask("0")
	if added != "default/node-1 default/node-2 " || removed != "" || first.Self != "default/node-1" || first.ClientID == 0 {
		t.Errorf("first answer %+v", first)
	}
	other := first.NodesAdded[1]
	if got := fmt.Sprintf("%s %s %s %v", other.PrimaryAddress.Ipv4.IP, other.PrimaryAddress.Ipv4.AllocRange, other.HealthEndpointAddress.Ipv4.IP,
		other.SecondaryAddresses); got != "192.0.2.2 10.0.2.0/24 10.0.2.9 [{CiliumInternalIP  true 10.0.2.1}]" {
		t.Errorf("the other node is %s", got)
	}
	id := strconv.FormatInt(first.ClientID, 10)
	if again, added, removed := ask(id); added+removed != "" || again.ClientID != first.ClientID {
		t.Errorf("nothing has changed, and the answer is %+v", again)
	}
	f.putNode(&nodes.Node{Name: "node-3", Source: nodes.Kubernetes})
	f.putNode(&nodes.Node{Name: "node-2", Source: nodes.Kubernetes})
	if _, added, removed := ask(id); added != "default/node-2 default/node-3 " || removed != "" {
		t.Errorf("added %q, removed %q", added, removed)
	}
	txn := f.api.DB.WriteTxn(f.nodes)
	_, _, err := f.nodes.Delete(txn, &nodes.Node{Name: "node-2"})
	txn.Commit()
	if err != nil {
		t.Fatal(err)
	}
	if _, added, removed := ask(id); added != "" || removed != "default/node-2 " {
		t.Errorf("added %q, removed %q", added, removed)
	}
	// An unknown id belongs to the previous run: the client gets a new id and all nodes.
	if status, added, _ := ask("7"); added != "default/node-1 default/node-3 " || status.ClientID == 7 {
		t.Errorf("an unknown client is told %+v", status)
	}
	for range maxNodeClients {
		ask("0")
	}
	if status, added, _ := ask(id); added == "" || status.ClientID == first.ClientID {
		t.Errorf("a client that was forgotten is told %+v", status)
	}
}

// Models of a service and of one of its backends.
const (
	cartBackend = `{"ip":"10.0.1.7","nodeName":"node-1","port":8080,"protocol":"TCP","state":"active","zone":"a"}`
	webService  = `{"backend-addresses":[` + cartBackend + `,{"ip":"10.0.2.7","nodeName":"node-2","port":8080,"protocol":"TCP","state":"terminating"}],` +
		`"flags":{"extTrafficPolicy":"Local","healthCheckNodePort":32000,"intTrafficPolicy":"Cluster","name":"web","namespace":"shop",` +
		`"trafficPolicy":"Local","type":"ClusterIP"},"frontend-address":{"ip":"10.96.0.1","port":80,"protocol":"TCP","scope":"external"},"id":1}`
)
