package cli

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/monitorwire"
	"github.com/waggle-net/waggle/pkg/shellwire"
	"github.com/waggle-net/waggle/pkg/testnet"
)

var update = flag.Bool("update", false, "write what is compared instead of comparing it")

// fakeAPI is an agent that returns one body for each path.
type fakeAPI map[string]string

func (a fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, found := a[r.Method+" "+r.URL.Path]
	if !found {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if code, rest, coded := strings.Cut(body, " "); coded && len(code) == 3 {
		status := 0
		if _, err := fmt.Sscan(code, &status); err == nil {
			w.WriteHeader(status)
			body = rest
		}
	}
	fmt.Fprint(w, body)
}

// serve runs handlers on the sockets of a state directory and returns the path of the API's socket.
func serve(t *testing.T, api fakeAPI) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "waggle.sock")
	l := listen(t, socket)
	server := &http.Server{Handler: api}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return socket
}

func listen(t *testing.T, socket string) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// run runs the command and returns its exit code and output.
func run(t *testing.T, socket string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Run(append([]string{"--host", "unix://" + socket}, args...), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

const healthy = `{"cilium":{"state":"Ok","msg":"1.2"},"kubernetes":{"state":"Ok","msg":"from manifests"},"datapath-mode":"veth","attach-mode":"tc",
"routing":{"inter-host-routing-mode":"Tunnel","intra-host-routing-mode":"BPF","tunnel-protocol":"vxlan"},
"ipam":{"status":"IPv4: 1/254 allocated from 10.0.1.0/24"},"cluster":{"self":"default/node-1","ciliumHealth":{"state":"Ok","msg":"2/3 reachable; unreachable: node-\u001b[2J"}},"agent":{"state":"ready"},"unmanaged-pods":["shop/old"],
"modules":[{"id":"ipam.job-x","level":"OK","message":"fine"},{"id":"loader","level":"Degraded","message":"attach \u001b[31m","error":"busy"}]}`

const oneEndpoint = `[{"id":7,"status":{"state":"ready","identity":{"id":5,"labels":["reserved:init"]},
"external-identifiers":{"pod-name":"shop/cart","cni-attachment-id":"0123456789abcdef0123456789abcdef:eth0"},
"policy":{"realized":{"policy-enabled":"audit-both"}},"networking":{"addressing":[{"ipv4":"10.0.1.7","ipv6":"fd00::7"}],"interface-name":"lxc1"}}}]`

// TestOutput compares the text output of commands.
func TestOutput(t *testing.T) {
	t.Parallel()
	socket := serve(t, fakeAPI{
		"GET /v1/healthz": healthy, "GET /v1/endpoint": oneEndpoint, "GET /v1/config": `{}`,
		"GET /v1/endpoint/7/log": `[{"timestamp":"2026-01-02T03:04:05Z","code":"ok","state":"ready","message":"in the kernel"}]`,
		"GET /v1/map/bpf_links":  `{"path":"/p","cache":[{"key":"12","value":"7"}]}`,
		"GET /statedb/dump/ipam-addresses": `{"ipam-addresses":[{"addr":"10.0.1.7","pool":"default","state":"claimed","owner":"shop/cart\u001b[2J",` +
			`"attachment":"c7:eth0"}]}`,
		"GET /statedb/dump/drift-repairs": `{"drift-repairs":[{"kind":"link","what":"waggle_host","count":3,"found":"down",` +
			`"last":"2026-01-02T03:04:05Z"},{"kind":"route","what":"10.0.1.0/24","count":1,"found":"missing","last":"2026-01-02T03:04:06Z"}]}`,
		"GET /statedb/dump/bpf-programs": `{"bpf-programs":[{"name":"pod_egress","generation":2,"id":101},{"name":"pod_ingress",` +
			`"generation":2,"id":102}]}`,
		"GET /statedb/dump/policies": `{"policies":[{"ref":{"kind":"NetworkPolicy","namespace":"shop","name":"try"},"audit":true},
{"ref":{"kind":"CiliumNetworkPolicy","namespace":"shop","name":"names"},"problems":[{"path":"spec","reason":"Unsupported","message":"x"}]}]}`,
		"GET /statedb/dump/node-paths": `{"node-paths":[{"node":"a","mode":"direct"},{"node":"b","mode":"tunnel"}]}`,
		"GET /statedb/dump/configs":    `{"configs":[{"key":"debug","value":"false","changed":true,"next":"\u001b[2J","nextSource":"directory"},{"key":"encrypt\u001b[2J","ignored":true,"unprotected":"nothing is encrypted"},{"key":"kvstore","ignored":true}]}`,
		"GET /statedb/dump/path-tests": `{"path-tests":[{"node":"a","kind":"echo","state":"passed"},{"node":"b","kind":"echo","state":"unknown"},
{"node":"c\u001b[2J","kind":"echo","state":"failed","fault":"blocked","detail":"UDP port 8472 is blocked","remedy":"open it"}]}`,
		"GET /statedb/dump/node-views": `{"node-views":[{"node":"d\u001b[2J","nodes":2,"own":3,"suspect":"d\u001b[2J"},{"node":"e","nodes":3,"own":3,"suspect":"node-1"}]}`,
		"GET /statedb/dump/self-tests": `{"self-tests":[{"name":"attach","state":"failed","at":"2026-01-02T03:04:05Z","message":"ping: no answer"}]}`,
		"GET /statedb/dump/identities": `{"identities":[{"id":300,"source":"crd","labels":{"k8s:app":"web","k8s:x":""}}]}`,
		"GET /v1/identity/300":         `{"id":300}`,
		"GET /v1/ip": `[{"cidr":"10.0.1.8/32","identity":300,"hostIP":"192.0.2.2","metadata":{"source":"custom-resource","namespace":"shop","name":"web"}},` +
			`{"cidr":"::/0","identity":10,"metadata":{"source":"generated"}}]`,
		"GET /v1/map/ipcache": `{"cache":[{"key":"family=4 addr=10.0.1.8","value":"identity=300 node=2 flags=0"},` +
			`{"key":"family=6 addr=fd00::8","value":"identity=0 node=0 flags=0"}]}`,
		"GET /v1/map/ipcache_prefixes": `{"cache":[{"key":"prefixlen=32 family=4 addr=0.0.0.0","value":"identity=9 node=0 flags=0"},` +
			`{"key":"prefixlen=40 family=4 addr=10.0.0.0","value":"identity=7 node=0 flags=0"}]}`,
		"GET /statedb/dump/drops": `{"drops":[{"reasonText":"Invalid source ip","direction":"egress","endpoint":7,"proto":"UDP","src":"10.0.1.9",` +
			`"dst":"10.0.1.8","srcPort":1,"dstPort":2,"length":60,"location":"pod_egress.c:10","time":"2026-01-02T03:04:05Z"}]}`,
	})
	summary := "Agent:                 Ok - 1.2\nNode:                  default/node-1\nCluster health:        2/3 reachable; unreachable: node-\\x1b[2J\n" +
		"Paths:                 1/3 passed, 1 unknown, 1 failed\n  c\\x1b[2J:            UDP port 8472 is blocked: open it\n" +
		"Node views:            2 agents know other nodes than this one\n" +
		"  d\\x1b[2J:            the agent of d\\x1b[2J knows 2 nodes and this one 3: check the agent of d\\x1b[2J. Compare waggle node list on both nodes, and restart that agent if they still differ\n" +
		"  e:                   the agents of e and of this node know 3 nodes each, which differ in nodes or addresses: check the agent of node-1. Compare waggle node list on both nodes, and restart that agent if they still differ\n" +
		"Kubernetes:            Ok - from manifests\n" +
		"IPAM:                  IPv4: 1/254 allocated from 10.0.1.0/24\nDatapath:              veth links, programs attached with tc, 0 maps\n" +
		"Programs:              datapath generation 2 (pod_egress 101, pod_ingress 102)\n" +
		"Routing:               Network: Tunnel [vxlan], 1 direct, 1 tunnel   Host: BPF\n" +
		"KubeProxyReplacement:  -\nMasquerading:          Disabled\nDevices:               -\n" +
		"Endpoints:             1, 1 ready\nPolicies:              2, 1 in audit mode, 1 not enforced as written; see waggle policy list\nPods:                  1 run without an endpoint, and must be restarted to use Waggle's network: shop/old\nSelf-test:             attach failed - ping: no answer\n" +
		"Repairs:               4, last: route 10.0.1.0/24 (missing) at 2026-01-02T03:04:06Z; see waggle db show drift-repairs\n" +
		"Changed options:       1\n  debug:               false now, \\x1b[2J after a restart of the agent (directory)\n" +
		"Unprotected:           encrypt\\x1b[2J: nothing is encrypted\nIgnored options:       kvstore\nModules:               1 OK, 1 Degraded, 0 Stopped\n"
	for _, tc := range []struct{ args, want string }{
		{"status --brief", "Ok - 1.2\n"},
		{"status", summary + "\n└── loader  [Degraded] attach \\x1b[31m: busy\n"},
		{"status --verbose", summary + "\n├── ipam\n│   └── job-x  [OK] fine\n└── loader  [Degraded] attach \\x1b[31m: busy\n"},
		{"endpoint list", "ID  POLICY IN         POLICY OUT        IDENTITY           STATE  POD        IPV4      IPV6     INTERFACE  ATTACHMENT\n" +
			"7   Disabled (Audit)  Disabled (Audit)  5 (reserved:init)  ready  shop/cart  10.0.1.7  fd00::7  lxc1       0123456789ab..bcdef:eth0\n"},
		{"endpoint log 7", "TIME                  CODE  STATE  MESSAGE\n2026-01-02T03:04:05Z  ok    ready  in the kernel\n"},
		{"identity list", "ID   SOURCE  LABELS\n300  crd     k8s:app=web,k8s:x=\n"},
		{"identity get 300", "{\n  \"id\": 300\n}\n"},
		{"ip list", "IP           IDENTITY  SOURCE           HOST       POD\n10.0.1.8/32  300       custom-resource  192.0.2.2  shop/web\n" +
			"::/0         10        generated        -          -\n"},
		{"bpf ipcache list", "PREFIX       IDENTITY  NODE ID\n0.0.0.0/0    9         -\n10.0.0.0/8   7         -\n" +
			"10.0.1.8/32  300       2\nfd00::8/128  0         -\n"},
		{"bpf ipcache get 10.0.1.8", "PREFIX       IDENTITY  NODE ID\n10.0.1.8/32  300       2\n"},
		{"bpf ipcache get 10.9.9.9", "PREFIX      IDENTITY  NODE ID\n10.0.0.0/8  7         -\n"},
		{"bpf ipcache get 192.0.2.1", "PREFIX     IDENTITY  NODE ID\n0.0.0.0/0  9         -\n"},
		{"map get bpf_links", "KEY  VALUE\n12   7\n"},
		{"map get bpf_links -o yaml", "cache:\n- key: \"12\"\n  value: \"7\"\npath: /p\n"},
		{"ipam list", "ADDRESS   POOL     STATE    OWNER             ATTACHMENT  EXPIRES\n10.0.1.7  default  claimed  shop/cart\\x1b[2J  c7:eth0     -\n"},
	} {
		code, out, errs := run(t, socket, strings.Fields(tc.args)...)
		if code != 0 || out != tc.want {
			t.Errorf("%s: exit %d\ngot  %q\nwant %q\n%s", tc.args, code, out, tc.want, errs)
		}
	}
	var status struct {
		Cilium    struct{ Msg string }
		SelfTests []struct{ Message string } `json:"self-tests"`
	}
	_, out, _ := run(t, socket, "status", "-o", "json")
	if err := json.Unmarshal([]byte(out), &status); err != nil || len(status.SelfTests) != 1 || status.SelfTests[0].Message != "ping: no answer" || status.Cilium.Msg != "1.2" {
		t.Errorf("status for programs: %v\n%s", err, out)
	}
	if _, out, _ := run(t, socket, "drops"); !strings.Contains(out, "Invalid source ip  egress     7         UDP    10.0.1.9:1  10.0.1.8:2   60") {
		t.Errorf("drops:\n%s", out)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	socket := serve(t, fakeAPI{
		"GET /v1/healthz":       `{"cilium":{"state":"Failure","msg":"1.2: waiting for a Node"},"agent":{"state":"starting"}}`,
		"DELETE /v1/endpoint/7": `500 "disk full"`,
	})
	for _, tc := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"status --brief", exitFailed, "Failure - 1.2: waiting for a Node\n", ""},
		{"endpoint get 9", exitFailed, "", "waggle: there is no endpoint 9 on this node: waggle endpoint list shows the existing ones\n"},
		{"endpoint delete 7", exitFailed, "", "waggle: delete endpoint 7: disk full (status 500)\n"},
		{"endpoint get", exitUsage, "", "waggle: waggle endpoint get: accepts 1 arg(s), received 0\n"},
		{"endpoint nonsense", exitUsage, "", "waggle: waggle endpoint: no such command \"nonsense\"; see waggle endpoint --help\n"},
		{"status --nonsense", exitUsage, "", "waggle: unknown flag: --nonsense\n"},
		{"ipam list -o xml", exitUsage, "", "waggle: -o \"xml\": use json or yaml\n"},
		{"monitor -t nonsense", exitUsage, "", "waggle: -t \"nonsense\": use drop, trace or policy-verdict\n"},
	} {
		code, out, errs := run(t, socket, strings.Fields(tc.args)...)
		if code != tc.code || out != tc.stdout || errs != tc.stderr {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", tc.args, code, out, errs)
		}
	}
	for _, args := range [][]string{{"status"}, {"db"}, {"shell", "--", "db"}, {"monitor"}, {"ipam", "list"}} {
		socket := filepath.Join(t.TempDir(), "none.sock")
		code, _, errs := run(t, socket, args...)
		if code != exitUnreachable || !strings.Contains(errs, "check that waggle-agent runs") {
			t.Errorf("%v without an agent: exit %d, %s", args, code, errs)
		}
	}
}

// TestShell runs commands of the shell against an agent that echoes.
func TestShell(t *testing.T) {
	t.Parallel()
	socket := serve(t, nil)
	l := listen(t, filepath.Join(filepath.Dir(socket), shellwire.SocketName))
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 1000)
			n, _ := conn.Read(buf)
			line := strings.TrimSuffix(string(buf[:n]), "\n")
			if strings.HasPrefix(line, "fail") {
				fmt.Fprintf(conn, "no%s\n", shellwire.ErrorMarker)
			} else {
				fmt.Fprintf(conn, "[stdout]\n%s\tx\x1b[0m\nno newline%s\n", line, shellwire.EndMarker)
			}
			conn.Close()
		}
	}()
	for args, want := range map[string]string{
		"shell -- db/show endpoints":         "db/show endpoints\tx\\x1b[0m\nno newline\n",
		"db show endpoints":                  "db/show endpoints\tx\\x1b[0m\nno newline\n",
		"db show endpoints --columns=ID,Pod": "db/show endpoints --columns=ID,Pod\tx\\x1b[0m\nno newline\n",
		"db get endpoints pod it's":          "db/list --index=pod endpoints 'it''s'\tx\\x1b[0m\nno newline\n",
	} {
		if code, out, errs := run(t, socket, strings.Fields(args)...); code != 0 || out != want {
			t.Errorf("%s: exit %d, %q %s", args, code, out, errs)
		}
	}
	if code, _, errs := run(t, socket, "shell", "--", "fail"); code != exitFailed || errs != "waggle: the agent's shell: no\n" {
		t.Errorf("a command that fails: exit %d, %q", code, errs)
	}
}

// TestMonitor reads a stream with a drop, a loss and an unknown event.
func TestMonitor(t *testing.T) {
	t.Parallel()
	socket := serve(t, nil)
	l := listen(t, filepath.Join(filepath.Dir(socket), monitorSocketName))
	drop := make([]byte, 36)
	drop[0], drop[1], drop[2], drop[14] = 1, 132, 7, 1
	verdict := make([]byte, 40)
	verdict[0], verdict[2], verdict[14], verdict[16], verdict[24], verdict[26], verdict[27] = 5, 7, 1, 9, 80, 6, 1|1<<6
	note, err := (&events.Note{Header: events.Header{Endpoint: 7}, Drop: 1, Policy: "no rule\x1b allows it"}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			enc := monitorwire.NewEncoder(conn)
			_ = enc.Put(&monitorwire.Payload{Type: monitorwire.TypeSample, Data: drop})
			_ = enc.Put(&monitorwire.Payload{Type: monitorwire.TypeSample, Data: note})
			_ = enc.Put(&monitorwire.Payload{Type: monitorwire.TypeSample, Data: verdict})
			_ = enc.Put(&monitorwire.Payload{Type: monitorwire.TypeLost, Lost: 3})
			_ = enc.Put(&monitorwire.Payload{Type: monitorwire.TypeSample, Data: []byte{200}})
			conn.Close()
		}
	}()
	code, out, errs := run(t, socket, "monitor")
	if want := "xx drop (Invalid source ip) egress endpoint 7, identity 0->0, ifindex 0: - - -> -, 0 bytes at "; !strings.HasPrefix(out, want) {
		t.Errorf("got %q", out)
	}
	if !strings.Contains(out, "\n   policy: no rule\\x1b allows it\n") {
		t.Errorf("got %q", out)
	}
	if !strings.Contains(out, "!! 3 events were lost") || !strings.Contains(out, "?? decode event of 1 bytes") {
		t.Errorf("got %q", out)
	}
	if code != exitFailed || !strings.Contains(errs, "ended the stream") {
		t.Errorf("exit %d, %s", code, errs)
	}
	_, out, _ = run(t, socket, "monitor", "-t", "policy-verdict")
	if want := "-- policy audit ingress endpoint 7, remote identity 9, match none: - - -> -\n"; !strings.HasPrefix(out, want) {
		t.Errorf("got %q", out)
	}
	_, out, _ = run(t, socket, "monitor", "-t", "drop", "--related-to", "7", "-o", "json")
	if strings.Count(out, "\n") != 3 || !strings.Contains(out, `"type":"why"`) || !strings.Contains(out, `"type":"drop","reason":"Invalid source ip","reasonCode":132`) {
		t.Errorf("got %q", out)
	}
}

// An agent that accepts the connection and sends nothing, or ends before it answers, does not answer: exit code 3. A failed request has code 1.
func TestExitCode_AgentDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		serve func(net.Conn)
		code  int
		want  string
	}{
		"silent":  {func(net.Conn) {}, exitUnreachable, "/livez"},
		"killed":  {func(c net.Conn) { c.Close() }, exitUnreachable, "did not answer"},
		"no HTTP": {func(c net.Conn) { fmt.Fprintln(c, "SSH-2.0"); c.Close() }, exitFailed, "not HTTP"},
		"failed":  {func(c net.Conn) { fmt.Fprint(c, "HTTP/1.0 500 Internal Server Error\r\n\r\n"); c.Close() }, exitFailed, "500"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "waggle.sock")
			acceptFrom(t, listen(t, socket), func(conn net.Conn) {
				_, _ = conn.Read(make([]byte, 4096))
				c.serve(conn)
			})
			timeout := "--timeout=1m"
			if name == "silent" {
				timeout = "--timeout=20ms"
			}
			if code, _, errs := run(t, socket, "map", "list", timeout); code != c.code || !strings.Contains(errs, c.want) || !strings.Contains(errs, socket) && c.code == exitUnreachable {
				t.Errorf("exit %d, want %d: %s", code, c.code, errs)
			}
		})
	}
}

// acceptFrom calls serve for each connection. The connections stay open until the end of the test, unless serve closes them.
func acceptFrom(t *testing.T, l net.Listener, serve func(net.Conn)) {
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			go serve(conn)
		}
	}()
}

// signalling is a standard input that sends the process signals when it is read: one that the command catches, then others until one ends the process.
type signalling struct{}

func (signalling) Read([]byte) (int, error) {
	runtime.LockOSThread() // this thread gets the signals, so none arrives while another thread ends the process
	send := func(s syscall.Signal) { _ = unix.Tgkill(os.Getpid(), unix.Gettid(), s) }
	send(syscall.SIGINT)
	for range 100_000 { // the command restores the signals' action soon after the first one
		runtime.Gosched()
		send(syscall.SIGTERM)
	}
	return 0, io.EOF
}

// A command that does not watch its context, such as one that reads a pipe, ends with the second signal.
func TestRun_SecondSignalEndsTheProcess(t *testing.T) {
	t.Parallel()
	testnet.UsesMachine()
	const child = "WAGGLE_TEST_SIGNALLED"
	if os.Getenv(child) != "" {
		os.Exit(Run([]string{"policy", "what-if", "-f", "-"}, signalling{}, io.Discard, io.Discard))
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestRun_SecondSignalEndsTheProcess$")
	cmd.Env = append(os.Environ(), child+"=1")
	err := cmd.Run()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGTERM {
		t.Errorf("%v, want the end by SIGTERM", err)
	}
}
