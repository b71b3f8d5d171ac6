package apiserver

import (
	"strings"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/cniconfig"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

func TestHealthz_ReportsCNIFileState(t *testing.T) {
	t.Parallel()
	for want, row := range map[string]*cniconfig.Config{
		`"cni-file":{"msg":"CNI configuration management disabled","state":"Disabled"}`: nil,
		`"cni-file":{"msg":"written to /x/w.conflist","state":"Ok"}`:                    {State: cniconfig.Written},
		`"cni-file":{"msg":"not written yet, waiting for the node","state":"Warning"}`:  {State: cniconfig.Waiting, Message: "the node"},
		`"cni-file":{"msg":"no space left","state":"Failure"}`:                          {State: cniconfig.Failed, Message: "no space left"},
		`"cni-file":{"msg":"00.conf comes first","state":"Warning"}`:                    {State: cniconfig.Shadowed, Message: "00.conf comes first"},
		`"cni-file":{"msg":"another program","state":"Warning"}`:                        {State: cniconfig.Conflict, Message: "another program"},
		`"cni-file":{"msg":"written to /x/w.conflist; with istio-cni","state":"Ok"}`:    {State: cniconfig.Written, Message: "with istio-cni"},
	} {
		f := newFixture(t)
		if row != nil {
			row.Path = "/x/w.conflist"
			f.fillCNIConfig(*row)
		}
		if body := read(t, f.request("GET", "/v1/healthz", "")); !strings.Contains(body, want) {
			t.Errorf("%s is missing in %s", want, body)
		}
	}
}

// A node whose pod CIDR has changed is not full because of the pods that keep their addresses.
func TestHealthz_IPAM_CountsAddressesOfTheRange(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	body := read(t, f.request("GET", "/v1/healthz", ""))
	for _, want := range []string{`"status":"IPv4: 1/254 allocated from 10.0.1.0/24, IPv6: 0/2^64 allocated from fd00:1::/64"`, `"10.9.9.9":"a/of-a-previous-range"`} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is missing in %s", want, body)
		}
	}
}

func TestHealthz_Routing_FollowsTheMode(t *testing.T) {
	t.Parallel()
	for want, mode := range map[string]agentconfig.Agent{
		`"routing":{"inter-host-routing-mode":"Native","intra-host-routing-mode":"BPF"}`:                           {},
		`"routing":{"inter-host-routing-mode":"Tunnel","intra-host-routing-mode":"BPF","tunnel-protocol":"vxlan"}`: {TunnelPort: 8472},
		`"routing":{"inter-host-routing-mode":"Native","intra-host-routing-mode":"Legacy"}`:                        {HostLegacyRouting: true},
	} {
		f := newFixture(t)
		f.api.Settings.TunnelPort, f.api.Settings.HostLegacyRouting = mode.TunnelPort, mode.HostLegacyRouting
		f.handler = newHandler(f.api)
		if body := read(t, f.request("GET", "/v1/healthz", "")); !strings.Contains(body, want) {
			t.Errorf("%s is missing in %s", want, body)
		}
	}
}

func TestHealthz_ReportsSnapshotTables(t *testing.T) {
	t.Parallel()
	copied := sources.Source{Table: "k8s-nodes", Producer: "snapshot", State: sources.Snapshot, Since: at.Add(time.Minute), Copy: at}
	later := "from the copy on disk of 2026-01-02T03:04:05Z, since 2026-01-02T03:05:05Z; "
	f := newFixture(t)
	f.fillAPIServers(apiservers.Server{Server: "https://192.0.2.1", Active: true, Reachable: apiservers.Unknown})
	f.fillSources(copied)
	if body := read(t, f.request("GET", "/v1/healthz", "")); !strings.Contains(body, `"msg":"all objects `+later) {
		t.Errorf("one of one table is from the copy: %s", body)
	}
	f.fillSources(sources.Source{Table: "k8s-pods", Producer: "reflectors", State: sources.Synced, Since: at, Copy: at})
	if body := read(t, f.request("GET", "/v1/healthz", "")); !strings.Contains(body, `"msg":"k8s-nodes `+later) {
		t.Errorf("one of two tables is from the copy: %s", body)
	}
}

func TestHealthz_ReportsActiveAPIServer(t *testing.T) {
	t.Parallel()
	second := apiservers.Server{Server: "https://192.0.2.2", Reachable: apiservers.No, Error: "refused", Since: at}
	for want, first := range map[string]apiservers.Server{
		`"kubernetes":{"msg":"from manifests","state":"Ok"}`:                                                          {},
		`"kubernetes":{"msg":"from manifests, https://192.0.2.1","state":"Ok"}`:                                       {Reachable: apiservers.Yes},
		`"kubernetes":{"msg":"https://192.0.2.1 has not responded yet","state":"Failure"}`:                            {Reachable: apiservers.Unknown},
		`"kubernetes":{"msg":"https://192.0.2.1 is unusable since 2026-01-02T03:04:05Z: no route","state":"Failure"}`: {Reachable: apiservers.No, Error: "no route", Since: at},
	} {
		f := newFixture(t)
		if first.Reachable != "" {
			first.Server, first.Active = "https://192.0.2.1", true
			f.fillAPIServers(first, second)
		}
		if body := read(t, f.request("GET", "/v1/healthz", "")); !strings.Contains(body, want) {
			t.Errorf("%s is missing in %s", want, body)
		}
	}
}
