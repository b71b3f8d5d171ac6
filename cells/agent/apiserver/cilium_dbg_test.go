package apiserver

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// Types of the replies, as far as cilium-dbg reads them, with the names of Cilium's API. They do not depend on package models, so the tests find a field that
// is renamed or lost there.
type (
	dbgState struct {
		State string `json:"state"`
		Msg   string `json:"msg"`
	}
	dbgFamily struct {
		Enabled    bool   `json:"enabled"`
		IP         string `json:"ip"`
		AllocRange string `json:"alloc-range"`
	}
	dbgAddressing struct {
		IPv4 dbgFamily `json:"ipv4"`
		IPv6 dbgFamily `json:"ipv6"`
	}
	dbgNode struct {
		Name    string        `json:"name"`
		Primary dbgAddressing `json:"primary-address"`
		Health  dbgAddressing `json:"health-endpoint-address"`
		Source  string        `json:"source"`
	}
	dbgStatus struct {
		Cilium     dbgState `json:"cilium"`
		CNIFile    dbgState `json:"cni-file"`
		Kubernetes dbgState `json:"kubernetes"`
		Cluster    struct {
			CiliumHealth dbgState `json:"ciliumHealth"`
			Self         string   `json:"self"`
		} `json:"cluster"`
		Controllers []struct {
			Name string `json:"name"`
		} `json:"controllers"`
		IPAM struct {
			Status      string            `json:"status"`
			IPv4        []string          `json:"ipv4"`
			Allocations map[string]string `json:"allocations"`
		} `json:"ipam"`
		KubeProxyReplacement struct {
			Mode string `json:"mode"`
		} `json:"kube-proxy-replacement"`
		Masquerading struct {
			Enabled          bool   `json:"enabled"`
			Mode             string `json:"mode"`
			EnabledProtocols struct {
				IPv4 bool `json:"ipv4"`
				IPv6 bool `json:"ipv6"`
			} `json:"enabledProtocols"`
		} `json:"masquerading"`
		Routing struct {
			InterHost      string `json:"inter-host-routing-mode"`
			IntraHost      string `json:"intra-host-routing-mode"`
			TunnelProtocol string `json:"tunnel-protocol"`
		} `json:"routing"`
		Encryption struct {
			Mode string `json:"mode"`
		} `json:"encryption"`
		BPFMaps struct {
			Maps []struct {
				Name string `json:"name"`
				Size int64  `json:"size"`
			} `json:"maps"`
		} `json:"bpf-maps"`
		AttachMode   string `json:"attach-mode"`
		DatapathMode string `json:"datapath-mode"`
	}
)

// dbgNodes are the nodes of [nodesFixture].
var dbgNodes = []dbgNode{
	{Name: "default/node-1", Source: "local", Primary: dbgAddressing{dbgFamily{true, "192.0.2.1", "10.0.1.0/24"}, dbgFamily{true, "", "fd00:1::/64"}},
		Health: dbgAddressing{dbgFamily{Enabled: true}, dbgFamily{Enabled: true}}},
	{Name: "default/node-2", Source: "custom-resource", Primary: dbgAddressing{dbgFamily{true, "192.0.2.2", "10.0.2.0/24"}, dbgFamily{Enabled: true}},
		Health: dbgAddressing{dbgFamily{Enabled: true, IP: "10.0.2.9"}, dbgFamily{Enabled: true}}},
	{Name: "default/node-3", Source: "kubernetes",
		Primary: dbgAddressing{dbgFamily{true, "192.0.2.3", "10.0.3.0/24"}, dbgFamily{true, "2001:db8::3", "fd00:3::/64"}},
		Health:  dbgAddressing{dbgFamily{Enabled: true, IP: "10.0.3.9"}, dbgFamily{Enabled: true, IP: "fd00:3::9"}}},
}

// nodesFixture is a fixture with another node of both families.
func nodesFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	row := &nodes.Node{Name: "node-3", Source: nodes.Kubernetes, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.3.0/24"), netip.MustParsePrefix("fd00:3::/64")}}
	for _, addr := range []string{"192.0.2.3", "2001:db8::3"} {
		row.Addresses = append(row.Addresses, nodes.Address{Type: nodes.InternalIP, Addr: netip.MustParseAddr(addr)})
	}
	for _, addr := range []string{"10.0.3.9", "fd00:3::9"} {
		row.Addresses = append(row.Addresses, nodes.Address{Type: nodes.HealthIP, Addr: netip.MustParseAddr(addr)})
	}
	f.putNode(row)
	return f
}

// get decodes a reply.
func (f *fixture) get(path string, reply any) {
	f.t.Helper()
	if err := json.Unmarshal([]byte(read(f.t, f.request("GET", path, ""))), reply); err != nil {
		f.t.Fatal(err)
	}
}

// TestNodes_CiliumDbg reads the nodes as cilium-dbg node list does, and their health addresses.
func TestNodes_CiliumDbg(t *testing.T) {
	t.Parallel()
	f := nodesFixture(t)
	var listed struct {
		Self  string    `json:"self"`
		Added []dbgNode `json:"nodes-added"`
	}
	f.get("/v1/cluster/nodes", &listed)
	if listed.Self != "default/node-1" || !slices.Equal(listed.Added, dbgNodes) {
		t.Errorf("cilium-dbg reads\n%+v, want\n%+v", listed, dbgNodes)
	}
	var status struct {
		Cluster struct {
			Nodes []dbgNode `json:"nodes"`
		} `json:"cluster"`
	}
	f.get("/v1/healthz", &status)
	if !slices.Equal(status.Cluster.Nodes, dbgNodes) {
		t.Errorf("cilium-dbg reads\n%+v, want\n%+v", status.Cluster.Nodes, dbgNodes)
	}
}

// TestStatus_CiliumDbg reads the status as cilium-dbg status does: no field is missing. Nodes have their own test, and so have the devices and features of
// kube-proxy-replacement.
func TestStatus_CiliumDbg(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	s := &f.api.Settings
	s.HealthChecking, s.TunnelPort, s.MasqueradeIPv4, s.MasqueradeIPv6, s.KubeProxyReplacement = true, 8472, true, true, true
	f.handler = newHandler(f.api)
	var status dbgStatus
	f.get("/v1/healthz", &status)
	for _, field := range missing("", reflect.ValueOf(status)) {
		t.Errorf("%s is missing: %+v", field, status)
	}
	if got := missing("", reflect.ValueOf(dbgStatus{})); !slices.Contains(got, ".Routing.InterHost") || !slices.Contains(got, ".Controllers") {
		t.Errorf("an empty status lacks only %v", got)
	}
}

// missing returns the paths of the empty values in a value: zero values, empty lists and empty maps.
func missing(path string, v reflect.Value) (paths []string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			paths = append(paths, missing(path+"."+v.Type().Field(i).Name, v.Field(i))...)
		}
		return paths
	case reflect.Slice:
		for i := range v.Len() {
			paths = append(paths, missing(path, v.Index(i))...)
		}
	}
	if v.IsZero() || (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0 {
		paths = append(paths, path)
	}
	return paths
}
