package cli

import (
	"strings"
	"testing"
)

func TestNodes(t *testing.T) {
	t.Parallel()
	socket := serve(t, fakeAPI{
		"GET /v1/cluster/nodes": `{"client-id":3,"self":"default/a","nodes-added":[{"name":"default/b","source":"custom-resource",
			"primary-address":{"ipv4":{"enabled":true,"ip":"192.0.2.2","alloc-range":"10.0.2.0/24"},"ipv6":{}}}]}`,
		"GET /v1/node/ids": `[{"id":0,"ips":["192.0.2.1"]},{"id":1,"ips":["192.0.2.2","2001:db8::2"]},{"id":2,"ips":[]}]`,
		"GET /statedb/dump/node-health": `{"node-health":[{"node":"b","kind":"host4","addr":"192.0.2.2","icmp":{"state":"reachable"},"http":{"state":"reachable"}},
			{"node":"b","kind":"health4","addr":"10.0.2.9","icmp":{"state":"unreachable","error":"Connection timed out"},"http":{"state":"unknown"}}]}`,
		"GET /statedb/dump/path-tests": `{"path-tests":[{"node":"b","kind":"echo","state":"passed"},
			{"node":"b","kind":"size","state":"failed","fault":"size","bytes":1400,"detail":"the path to node b carries 1400 of 1450 bytes","remedy":"raise it"}]}`,
		"GET /statedb/dump/node-paths": `{"node-paths":[{"node":"b","mode":"tunnel","why":"not on the link \u001b[2J","since":"2026-01-02T03:04:05Z"}]}`,
		"GET /statedb/dump/node-slots": `{"node-slots":[{"id":0,"node":"a"},{"id":1,"node":"b","direct":true,"routed":true}]}`,
		"GET /statedb/dump/nodes": `{"nodes":[{"name":"b","source":"custom-resource","addresses":[{"type":"InternalIP","addr":"192.0.2.2"}],
			"cidrs":["10.0.2.0/24"],"receives":{"known":true,"direct":true},"refused":[{"claim":"192.0.2.1","why":"is an address","by":"a\u001b[2J"}]}]}`,
	})
	for args, want := range map[string]string{
		"node list": "NAME       IPV4       IPV4 PODS    IPV6  IPV6 PODS  SOURCE           HEALTH       PATH        MODE\n" +
			"default/b  192.0.2.2  10.0.2.0/24  -     -          custom-resource  unreachable  1400 bytes  direct\n",
		"nodeid list": "NODE ID  IP ADDRESSES\n0        192.0.2.1\n1        192.0.2.2,2001:db8::2\n2        -\n",
		"node get default/b": "NAME        b\nSource      custom-resource\nInternalIP  192.0.2.2\nHealth      192.0.2.2 reachable\n" +
			"Health      10.0.2.9 unreachable ICMP: Connection timed out\n" +
			`Mode        tunnel since 2026-01-02T03:04:05Z: not on the link \x1b[2J` + "\n" +
			"Receives    direct\nPath        echo passed\nPath        size failed the path to node b carries 1400 of 1450 bytes: raise it\nPods        10.0.2.0/24\n" +
			`Refused     192.0.2.1: is an address of node a\x1b[2J` + "\n",
	} {
		if code, out, errs := run(t, socket, strings.Fields(args)...); code != 0 || out != want {
			t.Errorf("%s: exit %d\ngot\n%s\nwant\n%s\n%s", args, code, out, want, errs)
		}
	}
	code, _, errs := run(t, socket, "node", "get", "c")
	if code != exitFailed || !strings.Contains(errs, "node c is not in the cluster: see waggle node list") {
		t.Errorf("exit %d, %s", code, errs)
	}
}
