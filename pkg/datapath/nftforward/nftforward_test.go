package nftforward

import (
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// ofPod returns a packet of a family that a pod sends to another host.
func ofPod(ipv6 bool) Packet {
	p := Packet{In: "lxc0123456789ab", InGroup: 7, Out: "eth0", Source: netip.MustParseAddr("10.244.1.5")}
	if ipv6 {
		p.Source = netip.MustParseAddr("fd00:10:244:1::5")
	}
	return p
}

// load loads rules with a program: iptables-nft-restore, ip6tables-nft-restore or nft. Rules without white space are a file name in testdata.
func load(t *testing.T, program, rules string) {
	t.Helper()
	if !strings.ContainsAny(rules, " \n") {
		text, err := os.ReadFile("testdata/" + rules)
		if err != nil {
			t.Error(err)
			return
		}
		rules = string(text)
	}
	args := map[string][]string{"nft": {"-f", "-"}}[program]
	if strings.HasPrefix(rules, "-I") { // added to the existing rules
		rules, args = "*filter\n"+rules+"\nCOMMIT\n", []string{"--noflush"}
	}
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", program, err, out)
	}
}

const (
	ip4 = "iptables-nft-restore"
	ip6 = "ip6tables-nft-restore"
)

// hook begins a chain of the hook forward.
const hook = "add table inet t; add set inet t wans { type ifname; elements = { eth1, eth2 }; }; add chain inet t other; " +
	"add chain inet t f { type filter hook forward priority 5; policy drop; }; add rule inet t f "

func TestPrivilegedDropping_Firewalls(t *testing.T) {
	t.Parallel()
	type step struct{ program, rules string }
	filter4, filter6 := Chain{"ip", "filter", "FORWARD"}, Chain{"ip6", "filter", "FORWARD"}
	firewalld, reverse, own := Chain{"inet", "firewalld", "filter_FORWARD"}, Chain{"inet", "firewalld", "filter_PREROUTING"}, Chain{"inet", "t", "f"}
	kubeForward := "-I FORWARD -j KUBE-FORWARD\n-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n" +
		"-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
	for name, c := range map[string]struct {
		steps []step
		want4 []Chain
		want6 []Chain
	}{
		"nothing": {},
		"Docker":  {[]step{{ip4, "docker.rules"}, {ip6, "docker.rules"}}, []Chain{filter4}, []Chain{filter6}},
		"Docker, pods' devices are accepted": {[]step{{ip4, "docker.rules"}, {ip4, "-I DOCKER-USER -i lxc+ -j ACCEPT"}},
			nil, nil},
		"Docker, pods' addresses are accepted": {[]step{{ip4, "docker.rules"}, {ip4, "-I DOCKER-USER -s 10.244.0.0/16 -j ACCEPT"}, {ip6, "docker.rules"},
			{ip6, "-I DOCKER-USER -s fd00:10:244::/48 -j ACCEPT"}}, nil, nil},
		"Docker, other addresses are accepted": {[]step{{ip4, "docker.rules"}, {ip4, "-I DOCKER-USER -s 10.245.0.0/16 -j ACCEPT"}}, []Chain{filter4}, nil},
		"Docker, other devices are accepted":   {[]step{{ip4, "docker.rules"}, {ip4, "-I DOCKER-USER -i cali+ -j ACCEPT"}}, []Chain{filter4}, nil},
		"Docker, a comment":                    {[]step{{ip4, "docker.rules"}, {ip4, "-I DOCKER-USER -i lxc+ -m comment --comment pods -j ACCEPT"}}, nil, nil},
		"Docker, some ports are accepted":      {[]step{{ip4, "docker.rules"}, {ip4, "-I DOCKER-USER -p tcp --dport 443 -j ACCEPT"}}, nil, nil}, // undecided
		"Docker, UDP is accepted":              {[]step{{ip4, "docker.rules"}, {ip4, "-I DOCKER-USER -p udp -j ACCEPT"}}, []Chain{filter4}, nil},
		"Docker, a mark is accepted":           {[]step{{ip4, "docker.rules"}, {ip4, "-I DOCKER-USER -m mark --mark 0x4000/0x4000 -j ACCEPT"}}, nil, nil}, // undecided
		"Docker, new connections are accepted": {[]step{{ip4, "docker.rules"}, {ip4, "-I DOCKER-USER -m conntrack --ctstate NEW -j ACCEPT"}}, nil, nil},
		"Docker, all but invalid packets":      {[]step{{ip4, "docker.rules"}, {ip4, "-I DOCKER-USER -m conntrack ! --ctstate INVALID -j ACCEPT"}}, nil, nil},
		"kube-proxy only":                      {[]step{{ip4, "*filter\n:KUBE-FORWARD - [0:0]\n" + kubeForward + "\nCOMMIT\n"}}, nil, nil},
		"ufw":                                  {[]step{{ip4, "ufw.rules"}, {ip6, "ufw6.rules"}}, []Chain{filter4}, []Chain{filter6}},
		"ufw, routed packets are accepted":     {[]step{{ip4, "ufw.rules"}, {ip4, "-I ufw-user-forward -j ACCEPT"}}, nil, nil},
		"firewalld":                            {[]step{{"nft", "firewalld.nft"}}, []Chain{firewalld}, []Chain{firewalld, reverse}},
		"firewalld, pods' range is trusted": {[]step{{"nft", "firewalld.nft"},
			{"nft", "insert rule inet firewalld filter_FORWARD_ZONES ip saddr 10.244.0.0/16 goto filter_FWD_trusted"}}, nil, []Chain{firewalld, reverse}},
		"firewalld, IPv6_rpfilter=no": {[]step{{"nft", "firewalld.nft"}, {"nft", "flush chain inet firewalld filter_PREROUTING"}}, []Chain{firewalld}, []Chain{firewalld}},
		"two of them":                 {[]step{{ip4, "docker.rules"}, {"nft", "firewalld.nft"}}, []Chain{filter4, firewalld}, []Chain{firewalld, reverse}},

		"a device of a set":                 {[]step{{"nft", hook + "oifname != @wans accept"}}, nil, nil},
		"no device of a set":                {[]step{{"nft", hook + "oifname @wans accept"}}, []Chain{own}, []Chain{own}},
		"the link group":                    {[]step{{"nft", hook + "iifgroup 7 accept"}}, nil, nil},
		"a family":                          {[]step{{"nft", hook + "meta nfproto ipv6 accept"}}, []Chain{own}, nil},
		"another link group":                {[]step{{"nft", hook + "iifgroup 8 accept"}}, []Chain{own}, []Chain{own}},
		"return from the base chain":        {[]step{{"nft", hook + "return; add rule inet t f accept"}}, []Chain{own}, []Chain{own}},
		"perhaps a return":                  {[]step{{"nft", hook + "meta mark 1 return; add rule inet t f drop"}}, []Chain{own}, []Chain{own}},
		"perhaps a return, else good":       {[]step{{"nft", hook + "meta mark 1 return; add rule inet t f accept"}}, nil, nil},
		"perhaps a jump to drop":            {[]step{{"nft", hook + "meta mark 1 jump other; add rule inet t other drop; add rule inet t f accept"}}, nil, nil},
		"a goto does not return":            {[]step{{"nft", hook + "goto other; add rule inet t f accept"}}, []Chain{own}, []Chain{own}},
		"a jump returns":                    {[]step{{"nft", hook + "jump other; add rule inet t f accept"}}, nil, nil},
		"a dropped one is not called":       {[]step{{"nft", hook + "jump other; add rule inet t other return; add rule inet t other drop; add rule inet t f accept"}}, nil, nil},
		"a loose check of the reverse path": {[]step{{"nft", "add table inet t; add chain inet t p { type filter hook prerouting priority 5; }; add rule inet t p fib saddr oif missing drop"}}, nil, nil},
		"no chain of the hook forward":      {[]step{{"nft", "add table inet t; add chain inet t i { type filter hook input priority 0; policy drop; }"}}, nil, nil},
		"a bridge":                          {[]step{{"nft", "add table bridge t; add chain bridge t f { type filter hook forward priority 0; policy drop; }"}}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testnet.New(t).Do(func() {
				for _, s := range c.steps {
					load(t, s.program, s.rules)
				}
				for ipv6, want := range map[bool][]Chain{false: c.want4, true: c.want6} {
					if got, _, err := Dropping([]Packet{ofPod(ipv6)}); err != nil || !slices.Equal(got, want) {
						t.Errorf("IPv6 %t: %v (%v), want %v", ipv6, got, err, want)
					}
				}
			})
		})
	}
}

// Packets that connection tracking classifies as invalid are dropped also by firewalls that accept all connections of pods.
func TestPrivilegedDropping_InvalidPackets(t *testing.T) {
	t.Parallel()
	filter4, firewalld := Chain{"ip", "filter", "FORWARD"}, Chain{"inet", "firewalld", "filter_FORWARD"}
	for name, c := range map[string]struct {
		program, rules, more string
		want                 []Chain
	}{
		"nothing":                       {},
		"Docker, devices are accepted":  {ip4, "docker.rules", "-I DOCKER-USER -i lxc+ -j ACCEPT", nil},
		"Docker, all but invalid":       {ip4, "docker.rules", "-I DOCKER-USER -m conntrack ! --ctstate INVALID -j ACCEPT", []Chain{filter4}},
		"kube-proxy":                    {ip4, "*filter\n:KUBE-FORWARD - [0:0]\nCOMMIT\n", "-I FORWARD -m conntrack --ctstate INVALID -j DROP", []Chain{filter4}},
		"ufw, connections are accepted": {ip4, "ufw.rules", "-I ufw-user-forward -j ACCEPT", nil},
		"firewalld, a trusted range": {"nft", "firewalld.nft", "insert rule inet firewalld filter_FORWARD_ZONES ip saddr 10.244.0.0/16 goto filter_FWD_trusted",
			[]Chain{firewalld}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testnet.New(t).Do(func() {
				for _, rules := range []string{c.rules, c.more} {
					if rules != "" {
						load(t, c.program, rules)
					}
				}
				p := ofPod(false)
				p.Invalid = true
				if got, _, err := Dropping([]Packet{p}); err != nil || !slices.Equal(got, c.want) {
					t.Errorf("%v (%v), want %v", got, err, c.want)
				}
			})
		})
	}
}
