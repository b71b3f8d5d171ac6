package nodecidr

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/lastapplied"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodecidrs"
)

// dualStack are settings with both families and a node name from a flag.
var dualStack = agentconfig.Agent{EnableIPv4: true, EnableIPv6: true, NodeName: "one", NodeNameSource: "flag", IPAM: agentconfig.IPAMClusterPool}

func checked(t *testing.T, change func(*Config)) settings {
	t.Helper()
	c := DefaultConfig
	if change != nil {
		change(&c)
	}
	s, err := newSettings(c, dualStack, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const (
	v4Key, v4Alias = "network.cilium.io/ipv4-pod-cidr", "io.cilium.network.ipv4-pod-cidr"
	v6Key, v6Alias = "network.cilium.io/ipv6-pod-cidr", "io.cilium.network.ipv6-pod-cidr"
)

func notes(pairs ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

func TestChoose(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		flags func(*Config)
		node  *k8s.Node
		in    func(*input)
		// ipv4 and ipv6 are "source prefix" of the chosen candidates; empty without one.
		ipv4, ipv6 string
		// reasons are substrings of reasons, by "family/source".
		reasons map[string]string
	}{
		{
			name: "a range with the node's own address is rejected, the next one is used",
			node: &k8s.Node{PodCIDRs: []string{"192.0.2.0/24", "2001:db8:2::/64"}, Annotations: notes(v4Key, "10.3.0.0/24", v6Key, "fd00:3::/64")},
			in: func(in *input) {
				in.addresses = []netip.Addr{netip.MustParseAddr("192.0.2.11"), netip.MustParseAddr("2001:db8:2::11")}
			},
			ipv4: v4Key + " 10.3.0.0/24", ipv6: v6Key + " fd00:3::/64",
			reasons: map[string]string{"ipv4/spec.podCIDRs[0]": "it contains 192.0.2.11, an address of this node"},
		},
		{
			name:    "nothing is chosen before the node's own addresses are known",
			flags:   func(c *Config) { c.IPv4Range, c.IPv6Range = "10.9.0.0/24", "fd00:9::/64" },
			in:      func(in *input) { in.addressesPending, in.waitingFor = true, "the addresses of this node" },
			reasons: map[string]string{"ipv4/flag": "waiting for the addresses of this node"},
		},
		{
			name:  "flags precede everything",
			flags: func(c *Config) { c.IPv4Range, c.IPv6Range = "10.9.0.0/24", "fd00:9::/64" },
			node:  &k8s.Node{PodCIDRs: []string{"10.1.0.0/24", "fd00:1::/64"}, PodCIDR: "10.2.0.0/24"},
			ipv4:  "flag 10.9.0.0/24", ipv6: "flag fd00:9::/64",
			reasons: map[string]string{
				"ipv4/spec.podCIDRs[0]": "not used: flag has precedence",
				"ipv4/spec.podCIDR":     "not used: flag has precedence",
				"ipv4/derived":          "not used: a range is offered",
			},
		},
		{
			name:  "a flag for one family leaves the other to the node",
			flags: func(c *Config) { c.IPv4Range = "10.9.0.0/24" },
			node:  &k8s.Node{PodCIDRs: []string{"10.1.0.0/24", "fd00:1::/64"}},
			ipv4:  "flag 10.9.0.0/24", ipv6: "spec.podCIDRs[1] fd00:1::/64",
		},
		{
			name: "podCIDRs precede podCIDR, in any order of families",
			node: &k8s.Node{PodCIDRs: []string{"fd00:1::/64", "10.1.0.0/24"}, PodCIDR: "10.2.0.0/24"},
			ipv4: "spec.podCIDRs[1] 10.1.0.0/24", ipv6: "spec.podCIDRs[0] fd00:1::/64",
			reasons: map[string]string{"ipv4/spec.podCIDR": "not used: spec.podCIDRs[1] has precedence"},
		},
		{
			name: "podCIDR precedes annotations",
			node: &k8s.Node{PodCIDR: "10.2.0.0/24", Annotations: notes(v4Key, "10.3.0.0/24", v6Key, "fd00:3::/64")},
			ipv4: "spec.podCIDR 10.2.0.0/24", ipv6: v6Key + " fd00:3::/64",
			reasons: map[string]string{"ipv4/" + v4Key: "not used: spec.podCIDR has precedence"},
		},
		{
			name: "the new annotation precedes its alias",
			node: &k8s.Node{Annotations: notes(v4Alias, "10.4.0.0/24", v4Key, "10.3.0.0/24", v6Alias, "fd00:4::/64")},
			ipv4: v4Key + " 10.3.0.0/24", ipv6: v6Alias + " fd00:4::/64",
		},
		{
			name: "three entries are rejected together, then podCIDR is next",
			node: &k8s.Node{PodCIDRs: []string{"10.1.0.0/24", "fd00:1::/64", "10.5.0.0/24"}, PodCIDR: "10.2.0.0/24"},
			ipv4: "spec.podCIDR 10.2.0.0/24", ipv6: "derived f00d::a02:0:0:0/96",
			reasons: map[string]string{
				"ipv4/spec.podCIDRs[0]": "rejected: spec.podCIDRs has 3 entries",
				"ipv6/spec.podCIDRs[1]": "rejected: spec.podCIDRs has 3 entries",
			},
		},
		{
			name: "two entries of one family are rejected",
			node: &k8s.Node{PodCIDRs: []string{"10.1.0.0/24", "10.5.0.0/24"}, Annotations: notes(v4Key, "10.3.0.0/24")},
			ipv4: v4Key + " 10.3.0.0/24", ipv6: "derived f00d::a03:0:0:0/96",
			reasons: map[string]string{"ipv4/spec.podCIDRs[1]": "rejected: spec.podCIDRs has two entries of IPv4"},
		},
		{
			name: "a bad string is reported and its neighbour used",
			node: &k8s.Node{PodCIDRs: []string{"10.1.0.0/33", "fd00:1::/64"}},
			ipv4: "derived 10.0.0.0/16", ipv6: "spec.podCIDRs[1] fd00:1::/64",
			reasons: map[string]string{"unknown/spec.podCIDRs[0]": "rejected: not a CIDR"},
		},
		{
			name: "an annotation of the wrong family is rejected",
			node: &k8s.Node{Annotations: notes(v4Key, "fd00:3::/64")},
			ipv4: "derived 10.15.0.0/16", ipv6: "derived f00d::a0f:0:0:0/96",
			reasons: map[string]string{"ipv6/" + v4Key: "rejected: the annotation is for IPv4"},
		},
		{
			name: "host bits are cut off",
			node: &k8s.Node{PodCIDR: "10.2.3.4/24", Annotations: notes(v6Key, "fd00:3::9/64")},
			ipv4: "spec.podCIDR 10.2.3.0/24", ipv6: v6Key + " fd00:3::/64",
		},
		{
			name: "nothing is offered: derived from the address of the node",
			in:   func(in *input) { in.nodeIPv4 = netip.MustParseAddr("192.0.2.77") },
			ipv4: "derived 10.77.0.0/16", ipv6: "derived f00d::a4d:0:0:0/96",
		},
		{
			name:  "--ipv4-node precedes the detected address",
			flags: func(c *Config) { c.IPv4Node, c.IPv6ClusterRange = "192.0.2.5", "fd11::/64" },
			in:    func(in *input) { in.nodeIPv4 = netip.MustParseAddr("192.0.2.77") },
			ipv4:  "derived 10.5.0.0/16", ipv6: "derived fd11::a05:0:0:0/96",
		},
		{
			name: "without any address the IPv6 range determines the number",
			node: &k8s.Node{PodCIDRs: []string{"f00d::a2a:0:0:0/96"}},
			ipv4: "derived 10.0.0.0/16", ipv6: "spec.podCIDRs[0] f00d::a2a:0:0:0/96",
		},
		{
			name: "nothing is derived before the Nodes are read",
			in:   func(in *input) { in.waitingFor = "the Nodes of the cluster to be read" },
			reasons: map[string]string{
				"ipv4/derived": "waiting for the Nodes of the cluster to be read",
				"ipv6/derived": "waiting for the Nodes of the cluster to be read",
			},
		},
		{
			name:  "a flag waits for nothing",
			flags: func(c *Config) { c.IPv4Range = "10.9.0.0/24" },
			in:    func(in *input) { in.waitingFor = "the Nodes of the cluster to be read" },
			ipv4:  "flag 10.9.0.0/24",
		},
		{
			name:  "a required range is not derived",
			flags: func(c *Config) { c.RequireIPv4 = true },
			node:  &k8s.Node{Name: "one"},
			ipv6:  "derived f00d::a0f:0:0:0/96",
			reasons: map[string]string{
				"ipv4/derived": "waiting for an IPv4 pod CIDR in the Node one: it is required (--k8s-require-ipv4-pod-cidr)",
			},
		},
		{
			name:  "a required range, and the Node is missing",
			flags: func(c *Config) { c.RequireIPv4, c.RequireIPv6 = true, true },
			reasons: map[string]string{
				"ipv4/derived": "waiting for the Node one, whose IPv4 pod CIDR is required",
				"ipv6/derived": "waiting for the Node one, whose IPv6 pod CIDR is required (--k8s-require-ipv6-pod-cidr)",
			},
		},
		{
			name: "a disabled family gets nothing",
			node: &k8s.Node{PodCIDRs: []string{"10.1.0.0/24", "fd00:1::/64"}},
			in:   func(in *input) { in.enableIPv6 = false },
			ipv4: "spec.podCIDRs[0] 10.1.0.0/24",
			reasons: map[string]string{
				"ipv6/spec.podCIDRs[1]": "not used: IPv6 is disabled (--enable-ipv6=false)",
				"ipv6/derived":          "not used: IPv6 is disabled",
			},
		},
		{
			name: "IPv6 is derived by the node's number when IPv4 is disabled",
			in: func(in *input) {
				in.enableIPv4, in.nodeIPv4 = false, netip.MustParseAddr("192.0.2.77")
			},
			ipv6: "derived f00d::a4d:0:0:0/96",
		},
		{
			name: "the range of a deleted Node is kept",
			in: func(in *input) {
				in.chosenIPv4, in.chosenIPv6 = netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/64")
			},
			ipv4: "kept 10.1.0.0/24", ipv6: "kept fd00:1::/64",
		},
		{
			name: "a derived range stays when the node's address changes",
			in: func(in *input) {
				in.chosenIPv4, in.derivedIPv4 = netip.MustParsePrefix("10.77.0.0/16"), true
				in.nodeIPv4 = netip.MustParseAddr("192.0.2.78")
			},
			ipv4: "derived 10.77.0.0/16", ipv6: "derived f00d::a4d:0:0:0/96",
		},
		{
			name: "the range of a Node replaces a derived one",
			node: &k8s.Node{PodCIDRs: []string{"10.1.0.0/24"}},
			in: func(in *input) {
				in.chosenIPv4, in.derivedIPv4 = netip.MustParsePrefix("10.77.0.0/16"), true
				in.chosenIPv6, in.derivedIPv6 = netip.MustParsePrefix("f00d::a4d:0:0:0/96"), true
			},
			ipv4: "spec.podCIDRs[0] 10.1.0.0/24", ipv6: "derived f00d::a4d:0:0:0/96",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			in := input{settings: checked(t, test.flags), enableIPv4: true, enableIPv6: true, nodeName: "one", node: test.node}
			if test.in != nil {
				test.in(&in)
			}
			rows := choose(in)
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

func winner(t *testing.T, rows []nodecidrs.Candidate, family string) string {
	t.Helper()
	found := ""
	for _, row := range rows {
		if row.Family != family || !row.Chosen {
			continue
		}
		if found != "" {
			t.Errorf("two rows of %s are chosen", family)
		}
		found = row.Source + " " + row.Prefix.String()
	}
	return found
}

// checkRows checks the invariants of every choice and the expected reasons.
func checkRows(t *testing.T, rows []nodecidrs.Candidate, reasons map[string]string) {
	t.Helper()
	seen := map[string]string{}
	for _, row := range rows {
		key := row.Family + "/" + row.Source
		if _, doubled := seen[key]; doubled {
			t.Errorf("two rows are %s", key)
		}
		if row.Reason == "" {
			t.Errorf("%s has no reason", key)
		}
		seen[key] = row.Reason
	}
	for key, part := range reasons {
		if !strings.Contains(seen[key], part) {
			t.Errorf("the reason of %s is %q, want %q", key, seen[key], part)
		}
	}
}

func TestParse_Rejects(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/-1", "fd00::/129", "fe80::%eth0/64",
		"::ffff:10.0.0.0/120",
		"127.0.0.0/8", "224.0.0.0/8", "169.254.0.0/16", "0.0.0.0/0", "::/0", "fe80::/64", "::1/128", "10.0.0.0/8/8",
		"010.0.0.0/8", strings.Repeat("1", 10_000)} {
		if prefix, _, err := parse(raw); err == nil {
			t.Errorf("%.40q is accepted as %v", raw, prefix)
		}
	}
}

func TestNewSettings_RejectsBadFlags(t *testing.T) {
	t.Parallel()
	for flag, change := range map[string]func(*Config){
		"--ipv4-range":              func(c *Config) { c.IPv4Range = "10.0.0.0/40" },
		"--ipv6-range":              func(c *Config) { c.IPv6Range = "10.0.0.0/24" },
		"--ipv4-node":               func(c *Config) { c.IPv4Node = "fd00::1" },
		"--ipv6-cluster-alloc-cidr": func(c *Config) { c.IPv6ClusterRange = "f00d::/48" },
	} {
		c := DefaultConfig
		change(&c)
		if _, err := newSettings(c, dualStack, nil); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("error of a bad %s is %v", flag, err)
		}
	}
}

func FuzzChoose(f *testing.F) {
	f.Add("10.1.0.0/24", "fd00:1::/64", "10.2.0.0/24", "\x1b[2J", "10.4.0.0/24", `{"network.cilium.io/ipv4-pod-cidr":"x"}`, uint8(0), true)
	f.Add("fd00::/64", "fd00:1::/64", "", "10.0.0.0/24", "fd00:4::/64", "", uint8(1), false)
	f.Add("", "", "", "10.0.0.0/24", "10.4.0.0/24", `{"spec.ipam.podCIDRs":"10.4.0.0/24"}`, uint8(2), true)
	f.Fuzz(func(t *testing.T, first, second, single, annotation, pool, written string, from uint8, ready bool) {
		in := input{settings: checked(t, nil), enableIPv4: true, enableIPv6: true, nodeName: "one",
			node: &k8s.Node{PodCIDRs: []string{first, second}, PodCIDR: single,
				Annotations: notes(v4Key, annotation, lastapplied.Annotation, written)},
			ciliumNode: &cilium.Node{PodCIDRs: []string{pool}, Annotations: notes(lastapplied.Annotation, written)}}
		in.settings.source = source(from % 3)
		in.settings.requireIPv4, in.settings.requireIPv6 = from%3 != 0, from%3 != 0
		if !ready {
			in.waitingFor = "something"
		}
		rows := choose(in)
		winner(t, rows, "ipv4")
		winner(t, rows, "ipv6")
		checkRows(t, rows, nil)
		for _, row := range rows {
			if row.Chosen && strings.HasPrefix(row.Source, "CiliumNode.") != (in.settings.source == fromCiliumNode) && row.Source != nodecidrs.Derived {
				t.Errorf("%v is chosen", row)
			}
			if row.Chosen && row.Source == v4Key && lastapplied.Of(in.node.Annotations).Ours(v4Key, annotation) {
				t.Errorf("%v is chosen, and the agent wrote it", row)
			}
			if row.Chosen && !row.Prefix.IsValid() {
				t.Errorf("%v is chosen and has no prefix", row)
			}
			if strings.ContainsAny(row.Raw, "\x1b\n\r\x00") || len(row.Raw) > 400 {
				t.Errorf("%q is not fit to be shown", row.Raw)
			}
		}
	})
}
