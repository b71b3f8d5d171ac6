package node_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/tables/nodepaths"
	"github.com/waggle-net/waggle/test/nodekit"
)

// Programs that load rules.
const (
	rules4 = "iptables-nft-restore"
	rules6 = "ip6tables-nft-restore"
	rulesN = "nft"
)

// ruleText holds rules of netfilter: the name of a file of pkg/datapath/nftforward/testdata, or text that is added to the existing rules.
type ruleText struct{ program, text string }

// command returns the command that loads the rules.
func (r ruleText) command(t *testing.T) *exec.Cmd {
	t.Helper()
	text, args := r.text, []string{"-f", "-"}
	if r.program != rulesN {
		text, args = "*filter\n"+text+"\nCOMMIT\n", []string{"--noflush"}
	}
	if !strings.Contains(r.text, " ") {
		file, err := os.ReadFile(filepath.Join("../../pkg/datapath/nftforward/testdata", r.text))
		if err != nil {
			t.Fatal(err)
		}
		text = string(file)
	}
	cmd := exec.Command(r.program, args...)
	cmd.Stdin = strings.NewReader(text)
	return cmd
}

func loadRules(t *testing.T, n *nodekit.Node, rules []ruleText) {
	t.Helper()
	for _, r := range rules {
		runOn(t, n, r.command(t))
	}
}

// runOn runs a command on a node.
func runOn(t *testing.T, n *nodekit.Node, cmd *exec.Cmd) {
	t.Helper()
	if err := n.Do(func() error {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%q: %w\n%s", cmd.Args, err, out)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// foreignRules returns the rules of all tables except the agent's, without counters.
func foreignRules(t *testing.T, n *nodekit.Node) (tables []string) {
	t.Helper()
	if err := n.Do(func() error {
		out, err := exec.Command("nft", "-s", "list", "ruleset").Output()
		for table := range strings.SplitSeq(string(out), "\ntable ") {
			if !strings.HasPrefix(strings.TrimPrefix(table, "table "), "inet waggle ") {
				tables = append(tables, strings.TrimPrefix(table, "table "))
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return tables
}

// firewall is the firewall of a node in its default configuration.
type firewall struct {
	name    string
	chain   string // chain that status reports
	blocked bool   // it drops packets to the port of the tunnel
	drops6  bool   // it drops IPv6 pings of pods to the outside
	replies bool   // it drops the replies to tests of direct paths
	start   func(t *testing.T, n *nodekit.Node)
	// remedy runs the commands of the guide.
	remedy func(t *testing.T, n *nodekit.Node, mode firewallMode)
}

// firewallMode is a kind of paths between nodes.
type firewallMode struct {
	args           []string
	tunnel, native bool // nodes reach pods of other nodes through a tunnel, and without one
	direct         bool // pods reach each other before the remedies
	hybrid         bool // nodes also send without the tunnel, after the remedies and where no firewall prevents it
}

var firewallModes = map[string]firewallMode{
	"tunnel by programs":   {args: []string{"--routing-mode=tunnel"}, tunnel: true, direct: true},
	"tunnel by the device": {args: []string{"--routing-mode=tunnel", "--kube-proxy-replacement=false"}, tunnel: true},
	"hybrid":               {args: []string{"--routing-mode=hybrid"}, tunnel: true, direct: true, hybrid: true},
	"native":               {args: []string{"--routing-mode=native", "--auto-direct-node-routes"}, native: true},
}

// savedFirewalls lists the firewall of each node of a cluster, as rules that it would load.
var savedFirewalls = []firewall{
	{name: "Docker", chain: "chain FORWARD of nftables table ip filter", drops6: true,
		start:  loads(ruleText{rules4, "docker.rules"}, ruleText{rules6, "docker.rules"}),
		remedy: func(t *testing.T, n *nodekit.Node, _ firewallMode) { loads(acceptDevices...)(t, n) }},
	{name: "ufw", chain: "chain FORWARD of nftables table ip filter", blocked: true, replies: true, start: loads(ruleText{rules4, "ufw.rules"}, ruleText{rules6, "ufw6.rules"}),
		remedy: func(t *testing.T, n *nodekit.Node, _ firewallMode) { loads(ufwRemedy...)(t, n) }},
	{name: "firewalld", chain: "chain filter_PREROUTING of nftables table inet firewalld", blocked: true, drops6: true, start: loads(ruleText{rulesN, "firewalld.nft"}),
		remedy: func(t *testing.T, n *nodekit.Node, mode firewallMode) {
			sources4, sources6 := "10.244.0.0/16", "fd00:10:244::/48"
			if mode.native {
				sources4, sources6 = sources4+", 192.0.2.0/24", sources6+", 2001:db8:2::/64"
			}
			loads(trust(sources4, sources6)...)(t, n)
		}},
}

// loads returns a function that loads rules on a node.
func loads(rules ...ruleText) func(*testing.T, *nodekit.Node) {
	return func(t *testing.T, n *nodekit.Node) { t.Helper(); loadRules(t, n, rules) }
}

var (
	acceptDevices = []ruleText{{rules4, "-I DOCKER-USER -i lxc+ -j ACCEPT\n-I DOCKER-USER -o waggle_host -j ACCEPT"},
		{rules6, "-I DOCKER-USER -i lxc+ -j ACCEPT\n-I DOCKER-USER -o waggle_host -j ACCEPT"}}
	ufwRemedy = []ruleText{
		{rules4, ":FORWARD ACCEPT [0:0]\n-A ufw-user-input -p udp --dport 8472 -j ACCEPT\n-A ufw-user-input -p tcp --dport 4240 -j ACCEPT"},
		{rules6, ":FORWARD ACCEPT [0:0]\n-A ufw6-user-input -p udp --dport 8472 -j ACCEPT\n-A ufw6-user-input -p tcp --dport 4240 -j ACCEPT"}}
)

// trust returns the rules that firewalld creates for --add-port=8472/udp --add-port=4240/tcp, trusted sources, and IPv6_rpfilter=no.
func trust(sources4, sources6 string) []ruleText {
	return []ruleText{{rulesN, strings.Join([]string{
		"flush chain inet firewalld filter_PREROUTING",
		"add rule inet firewalld filter_IN_public_allow udp dport 8472 accept",
		"add rule inet firewalld filter_IN_public_allow tcp dport 4240 accept",
		fmt.Sprintf("insert rule inet firewalld filter_INPUT_ZONES ip saddr { %s } goto filter_IN_trusted", sources4),
		fmt.Sprintf("insert rule inet firewalld filter_INPUT_ZONES ip6 saddr { %s } goto filter_IN_trusted", sources6),
		fmt.Sprintf("insert rule inet firewalld filter_FORWARD_ZONES ip saddr { %s } goto filter_FWD_trusted", sources4),
		fmt.Sprintf("insert rule inet firewalld filter_FORWARD_ZONES ip6 saddr { %s } goto filter_FWD_trusted", sources6),
	}, "\n")}}
}

// Each node has the rules of another firewall.
func TestPrivilegedFirewalls_ReportedAndRemedied(t *testing.T) {
	t.Parallel()
	for name, mode := range firewallModes {
		t.Run(name, func(t *testing.T) { t.Parallel(); reportedAndRemedied(t, savedFirewalls, mode) })
	}
}

// reportedAndRemedied starts nodes with a firewall each. Each agent names the chain that drops packets of its pods, and the port of the tunnel that is blocked.
// With the remedies of the guide, pods and nodes reach each other and the outside, and the agents have changed no rule of a firewall.
func reportedAndRemedied(t *testing.T, firewalls []firewall, mode firewallMode) {
	c, all := newKubeCluster(t, len(firewalls), append(mode.args, "--verify-interval=1s")...)
	for i, n := range c.Nodes {
		firewalls[i].start(t, n)
	}
	startAgents(t, c)
	pods := map[*nodekit.Node]*nodekit.Pod{}
	for _, n := range all {
		pods[n.Node] = n.startPod(t, "pod-"+n.Name(), map[string]string{"app": "pod"})
	}
	for i, n := range c.Nodes {
		shows(t, n, "status", "a firewall of this node drops packets of pods to other hosts", firewalls[i].chain)
		if err := nodekit.PingBriefly(pods[n], outsideAddr(true), 56); err == nil && firewalls[i].drops6 {
			t.Errorf("a pod of the node with %s reaches the outside", firewalls[i].name)
		}
	}
	if mode.direct {
		eachPair(c, func(from, to *nodekit.Node) {
			for _, family := range families {
				if err := nodekit.Ping(pods[from], pods[to].Addr(family.ipv6), 56); err != nil {
					t.Errorf("%s from %s to %s: %v", family.name, from.Name(), to.Name(), err)
				}
			}
		})
	}
	if mode.tunnel {
		for i, n := range c.Nodes {
			if firewalls[i].blocked {
				shows(t, n, "status", "let firewalls between and on the nodes pass UDP port 8472")
			}
		}
	}
	var rules [][]string
	for i, n := range c.Nodes {
		firewalls[i].remedy(t, n, mode)
		rules = append(rules, foreignRules(t, n))
	}
	for i, n := range c.Nodes {
		if mode.tunnel {
			want := map[string]string{"node-1": "ok", "node-2": "ok", "node-3": "ok"}
			if mode.hybrid && firewalls[i].replies {
				want["node-1"] = "not-direct"
			}
			delete(want, n.Name())
			pathsOf(t, n, want)
		}
		eventually(t, func() error {
			text, err := n.Waggle(t.Context(), "status")
			if err == nil && strings.Contains(text, "a firewall of this node") {
				err = errors.New("the firewall is still named:\n" + text)
			}
			return err
		})
		for _, family := range families {
			if err := nodekit.TCP(pods[n], n.OutsideHost(), outsideAddr(family.ipv6), 1<<16); err != nil {
				t.Errorf("%s from %s to the outside: %v", family.name, n.Name(), err)
			}
		}
	}
	if mode.hybrid {
		const direct, tunnel = nodepaths.Direct, nodepaths.Tunnel
		modesOf(t, c.Nodes[0], map[string]nodepaths.Mode{"node-2": direct, "node-3": tunnel})
		modesOf(t, c.Nodes[1], map[string]nodepaths.Mode{"node-1": tunnel, "node-3": tunnel})
		modesOf(t, c.Nodes[2], map[string]nodepaths.Mode{"node-1": tunnel, "node-2": tunnel})
	}
	eachPair(c, func(from, to *nodekit.Node) { reachBetween(t, from, to, pods) })
	for i, n := range c.Nodes {
		if have := foreignRules(t, n); !slices.Equal(have, rules[i]) {
			t.Errorf("the rules of %s were\n%s\nand are\n%s", firewalls[i].name, strings.Join(rules[i], "\n"), strings.Join(have, "\n"))
		}
	}
}

// eachPair calls f for each ordered pair of different nodes.
func eachPair(c *nodekit.Cluster, f func(from, to *nodekit.Node)) {
	for _, from := range c.Nodes {
		for _, to := range c.Nodes {
			if from != to {
				f(from, to)
			}
		}
	}
}
