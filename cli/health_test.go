package cli

import (
	"strings"
	"testing"
)

const nodesHealth = `{"timestamp":"2026-01-02T03:04:05Z","probeInterval":"1m36s","local":{"name":"default/c"},"nodes":[
{"name":"default/a","host":{"primary-address":{"ip":"192.0.2.1","icmp":{"latency":1500000,"lastProbed":"2026-01-02T03:04:05Z"},
  "http":{"latency":2000000,"lastProbed":"2026-01-02T03:04:01Z"}},"secondary-addresses":[{"ip":"2001:db8::1"}]},
  "health-endpoint":{"primary-address":{"ip":"10.0.1.9","icmp":{"latency":1000000},"http":{"status":"connection refused","lastProbed":"2026-01-02T03:03:59Z"}}}},
{"name":"default/b\u001b[2J","host":{"primary-address":{"ip":"192.0.2.2","icmp":{"status":"Connection\ttimed out\u0007"},"http":{"latency":1}}}},
{"name":"default/c","host":{"primary-address":{"ip":"192.0.2.3","icmp":{"latency":90000},"http":{"latency":300000}}}},
{"name":"default/d"}]`

// TestHealth compares the text output of the health command.
func TestHealth(t *testing.T) {
	t.Parallel()
	socket := serve(t, fakeAPI{
		"GET /v1beta/status":       nodesHealth + "}",
		"PUT /v1beta/status/probe": nodesHealth + `,"notProbed":["default/a","default/b\u001b[2J","default/c","default/d"]}`,
	})
	const head = "Cluster health:   1/4 reachable   (2026-01-02T03:04:05Z)   (Probe interval: 1m36s)\n"
	const list = "NAME                   IP                     NODE             ENDPOINTS\n" +
		"default/c (localhost)  192.0.2.3              1/1              -\n" +
		"default/a              192.0.2.1,2001:db8::1  1/2 (1 unknown)  0/1\n" +
		`default/b\x1b[2J       192.0.2.2              0/1              -` + "\n" +
		"default/d              -                      -                -\n"
	const details = `default/c (localhost):
  Host connectivity to 192.0.2.3:
    ICMP to stack:   OK, RTT=90µs
    HTTP to agent:   OK, RTT=300µs
default/a:
  Host connectivity to 192.0.2.1:
    ICMP to stack:   OK, RTT=1.5ms   (Last probed: 2026-01-02T03:04:05Z)
    HTTP to agent:   OK, RTT=2ms     (Last probed: 2026-01-02T03:04:01Z)
  Host connectivity to 2001:db8::1:
    ICMP to stack:   unknown
    HTTP to agent:   unknown
  Endpoint connectivity to 10.0.1.9:
    ICMP to stack:   OK, RTT=1ms
    HTTP to agent:   connection refused   (Last probed: 2026-01-02T03:03:59Z)
`
	for args, want := range map[string]string{
		"health status":         head + list,
		"health status --probe": head + `4 nodes were not probed in time, so their results are older: default/a, default/b\x1b[2J, default/c and 1 more` + "\n" + list,
		"health status --verbose": head + details + `default/b\x1b[2J:
  Host connectivity to 192.0.2.2:
    ICMP to stack:   Connection\ttimed out\a
    HTTP to agent:   OK, RTT=1ns
default/d:
`,
	} {
		code, out, errs := run(t, socket, append(strings.Fields(args), "--health-socket", socket)...)
		if code != 0 || out != want {
			t.Errorf("%s: exit %d %s\ngot\n%s\nwant\n%s", args, code, errs, out, want)
		}
	}
	code, out, _ := run(t, socket, "health", "status", "--health-socket", socket, "-o", "json")
	if code != 0 || !strings.Contains(out, `"probeInterval": "1m36s"`) || strings.Contains(out, "\x1b") {
		t.Errorf("exit %d, %s", code, out)
	}
	code, _, errs := run(t, socket, "health", "status") // the default socket is beside the agent's
	if code != exitUnreachable || !strings.Contains(errs, "health.sock") || !strings.Contains(errs, "the socket does not exist with --enable-health-checking=false") {
		t.Errorf("without the socket: exit %d, %s", code, errs)
	}
}
