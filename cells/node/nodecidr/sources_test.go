package nodecidr

import (
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/lastapplied"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// online returns a client that never connects. With a client the agent assumes that there is an API server.
func online(t testing.TB) *kubeapi.Client {
	t.Helper()
	client, err := kubeapi.New(&rest.Config{Host: "http://127.0.0.1:1"}, kubeapi.DefaultConnection)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestChoose_Sources tests the sources of CIDRs with an API server, in both IPAM modes.
func TestChoose_Sources(t *testing.T) {
	t.Parallel()
	const pool = "CiliumNode.spec.ipam.podCIDRs"
	offering := &k8s.Node{PodCIDRs: []string{"10.1.0.0/24", "fd00:1::/64"}, Annotations: notes(v4Key, "10.3.0.0/24")}
	allocated := &cilium.Node{PodCIDRs: []string{"10.4.0.0/24", "fd00:4::/64", "10.5.0.0/24"}}
	for _, test := range []struct {
		name       string
		mode       string
		flags      func(*Config)
		node       *k8s.Node
		ciliumNode *cilium.Node
		in         func(*input)
		ipv4, ipv6 string
		reasons    map[string]string
	}{
		{
			name: "kubernetes uses the Node", mode: agentconfig.IPAMKubernetes, node: offering, ciliumNode: allocated,
			ipv4: "spec.podCIDRs[0] 10.1.0.0/24", ipv6: "spec.podCIDRs[1] fd00:1::/64",
			reasons: map[string]string{"ipv4/" + pool + "[0]": "not used: only --ipam=cluster-pool"},
		},
		{
			name: "cluster-pool uses the CiliumNode", mode: agentconfig.IPAMClusterPool, node: offering, ciliumNode: allocated,
			ipv4: pool + "[0] 10.4.0.0/24", ipv6: pool + "[1] fd00:4::/64",
			reasons: map[string]string{
				"ipv4/spec.podCIDRs[0]": "not used: --ipam=cluster-pool takes the CIDR from the CiliumNode",
				"ipv4/" + v4Key:         "not used: --ipam=cluster-pool takes",
				"ipv4/" + pool + "[2]":  "not used: " + pool + "[0] has precedence",
			},
		},
		{
			name: "flags precede the CiliumNode", mode: agentconfig.IPAMClusterPool, ciliumNode: allocated,
			flags: func(c *Config) { c.IPv4Range = "10.9.0.0/24" },
			ipv4:  "flag 10.9.0.0/24", ipv6: pool + "[1] fd00:4::/64",
		},
		{
			name: "an invalid CiliumNode is rejected", mode: agentconfig.IPAMClusterPool,
			ciliumNode: &cilium.Node{PodCIDRs: []string{"10.4.0.0/33", "127.0.0.0/8", "fd00:4::/64"}},
			ipv6:       pool + "[2] fd00:4::/64",
			reasons: map[string]string{
				"unknown/" + pool + "[0]": "rejected: not a CIDR",
				"unknown/" + pool + "[1]": "rejected: pods cannot have loopback",
				"ipv4/derived":            "waiting for an IPv4 pod CIDR in spec.ipam.podCIDRs of the CiliumNode one",
			},
		},
		{
			name: "nothing is derived with an API server", mode: agentconfig.IPAMKubernetes,
			reasons: map[string]string{
				"ipv4/derived": "waiting for the Node one, whose IPv4 pod CIDR is required (--ipam=kubernetes)",
				"ipv6/derived": "waiting for the Node one, whose IPv6",
			},
		},
		{
			name: "a Node without a CIDR is waited for", mode: agentconfig.IPAMKubernetes, node: &k8s.Node{}, ciliumNode: allocated,
			reasons: map[string]string{"ipv4/derived": "waiting for an IPv4 pod CIDR in the Node one: it is required (--ipam=kubernetes)"},
		},
		{
			name: "the CiliumNode is waited for", mode: agentconfig.IPAMClusterPool, node: offering,
			reasons: map[string]string{"ipv4/derived": "waiting for the CiliumNode one, whose IPv4 pod CIDR is required (--ipam=cluster-pool)"},
		},
		{
			name: "an annotation of the agent is no offer", mode: agentconfig.IPAMKubernetes,
			node: &k8s.Node{Annotations: notes(v4Key, "10.3.0.0/24", v4Alias, "10.6.0.0/24", v6Key, "fd00:3::/64",
				lastapplied.Annotation, lastapplied.Values{v4Key: "10.3.0.0/24", v6Key: "fd00:3::/64"}.String())},
			ipv4: v4Alias + " 10.6.0.0/24",
			reasons: map[string]string{
				"ipv4/" + v4Key: "not used: written by this agent",
				"ipv6/" + v6Key: "not used: written by this agent",
				"ipv6/derived":  "waiting for an IPv6 pod CIDR",
			},
		},
		{
			name: "an annotation that was changed since is an offer", mode: agentconfig.IPAMKubernetes,
			node: &k8s.Node{Annotations: notes(v4Key, "10.7.0.0/24", v6Key, "fd00:3::/64",
				lastapplied.Annotation, lastapplied.Values{v4Key: "10.3.0.0/24"}.String())},
			ipv4: v4Key + " 10.7.0.0/24", ipv6: v6Key + " fd00:3::/64",
		},
		{
			name: "an annotation of the agent in another mode is no offer", mode: agentconfig.IPAMClusterPool,
			ciliumNode: &cilium.Node{PodCIDRs: []string{"10.4.0.0/24", "fd00:4::/64"},
				Annotations: notes(lastapplied.Annotation, lastapplied.Values{"spec.ipam.podCIDRs": "10.4.0.0/24,fd00:4::/64"}.String())},
			reasons: map[string]string{"ipv4/" + pool + "[0]": "not used: written by this agent"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c, a := DefaultConfig, dualStack
			if test.flags != nil {
				test.flags(&c)
			}
			a.IPAM = test.mode
			s, err := newSettings(c, a, online(t))
			if err != nil {
				t.Fatal(err)
			}
			rows := choose(input{settings: s, enableIPv4: true, enableIPv6: true, nodeName: "one", node: test.node, ciliumNode: test.ciliumNode})
			if got := winner(t, rows, "ipv4"); got != test.ipv4 {
				t.Errorf("IPv4 is %q, want %q", got, test.ipv4)
			}
			if got := winner(t, rows, "ipv6"); got != test.ipv6 {
				t.Errorf("IPv6 is %q, want %q", got, test.ipv6)
			}
			checkRows(t, rows, test.reasons)
		})
	}
}

// TestNewSettings_RejectsGuessedNodeName tests the node name from the host name, which may be the name of another node.
func TestNewSettings_RejectsGuessedNodeName(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		source  string
		flags   func(*Config)
		offline bool
		wantErr bool
	}{
		"guessed":                       {source: "hostname", wantErr: true},
		"from the environment":          {source: "K8S_NODE_NAME"},
		"from the flag":                 {source: "flag"},
		"guessed without an API server": {source: "hostname", offline: true},
		"guessed with one range":        {source: "hostname", flags: func(c *Config) { c.IPv4Range = "10.9.0.0/24" }, wantErr: true},
		"guessed with both ranges": {source: "hostname",
			flags: func(c *Config) { c.IPv4Range, c.IPv6Range = "10.9.0.0/24", "fd00:9::/64" }},
	} {
		c, a, client := DefaultConfig, dualStack, online(t)
		if test.flags != nil {
			test.flags(&c)
		}
		if test.offline {
			client = nil
		}
		a.NodeNameSource = test.source
		_, err := newSettings(c, a, client)
		if gotErr := err != nil; gotErr != test.wantErr {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "K8S_NODE_NAME") || !strings.Contains(err.Error(), "--node-name")) {
			t.Errorf("%s: the error does not say what to do: %v", name, err)
		}
	}
}
