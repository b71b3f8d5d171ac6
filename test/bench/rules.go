package main

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/waggle-net/waggle/test/nodekit"
)

// writeRules implements the service, and filler services, with iptables-nft rules in the router: the chains that kube-proxy creates in iptables mode. The
// measured service is in the middle.
func writeRules(ctx context.Context, pair *nodekit.RoutedPair, fillers int) error {
	for _, family := range []struct {
		program string
		ipv6    bool
	}{{"iptables-nft-restore", false}, {"ip6tables-nft-restore", true}} {
		text := rules(pair.Addr(family.ipv6), family.ipv6, fillers)
		if err := pair.Router().Do(func() error {
			cmd := exec.CommandContext(ctx, family.program)
			cmd.Stdin = strings.NewReader(text)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w\n%s", family.program, err, out)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// rules returns the input of iptables-restore. Filler services use synthetic addresses of the selected family.
func rules(server netip.Addr, ipv6 bool, fillers int) string {
	r := ruleSet{ipv6: ipv6}
	for i := range fillers / 2 {
		r.filler(i)
	}
	r.service("shop", shopAddrs[ipv6], server)
	for i := fillers / 2; i < fillers; i++ {
		r.filler(i)
	}
	return "*filter\n:KUBE-FORWARD - [0:0]\n-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD\n" +
		"-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n" +
		"-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n" +
		"-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\nCOMMIT\n" +
		"*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-POSTROUTING - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n" + r.chains.String() +
		"-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n" +
		"-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n" +
		"-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING\n" +
		"-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n" +
		"-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n" +
		"-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000\n" +
		"-A KUBE-POSTROUTING -j MASQUERADE --random-fully\n" + r.rules.String() + "COMMIT\n"
}

// ruleSet collects chains and rules of services.
type ruleSet struct {
	ipv6          bool
	number        int
	chains, rules strings.Builder
}

func (r *ruleSet) filler(i int) {
	clusterIP, backend := fillerAddr(97, i), fillerAddr(98, i)
	if r.ipv6 {
		clusterIP, backend = asIPv6(clusterIP), asIPv6(backend)
	}
	r.service(fmt.Sprintf("filler-%d", i), clusterIP, backend)
}

// asIPv6 returns an IPv6 address that ends with an IPv4 address.
func asIPv6(a netip.Addr) netip.Addr {
	b := [16]byte{0xfd, 1}
	copy(b[12:], a.AsSlice())
	return netip.AddrFrom16(b)
}

// service adds a service with one backend.
func (r *ruleSet) service(name string, clusterIP, backend netip.Addr) {
	r.number++
	svc, sep := fmt.Sprintf("KUBE-SVC-%016d", r.number), fmt.Sprintf("KUBE-SEP-%016d", r.number)
	to := netip.PrefixFrom(clusterIP, clusterIP.BitLen())
	from := netip.PrefixFrom(backend, backend.BitLen())
	fmt.Fprintf(&r.chains, ":%s - [0:0]\n:%s - [0:0]\n", svc, sep)
	fmt.Fprintf(&r.rules, "-A KUBE-SERVICES -m comment --comment \"default/%s cluster IP\" -m tcp -p tcp -d %s --dport %d -j %s\n", name, to, shopPort, svc)
	pods := map[bool]string{false: "10.9.0.0/16", true: "fd00:9::/32"}[r.ipv6]
	fmt.Fprintf(&r.rules, "-A %s -m comment --comment \"default/%s cluster IP\" -m tcp -p tcp -d %s --dport %d ! -s %s -j KUBE-MARK-MASQ\n", svc, name, to, shopPort, pods)
	at := netip.AddrPortFrom(backend, shopBackend)
	fmt.Fprintf(&r.rules, "-A %s -m comment --comment \"default/%s -> %s\" -j %s\n", svc, name, at, sep)
	fmt.Fprintf(&r.rules, "-A %s -m comment --comment default/%s -s %s -j KUBE-MARK-MASQ\n", sep, name, from)
	fmt.Fprintf(&r.rules, "-A %s -m comment --comment default/%s -m tcp -p tcp -j DNAT --to-destination %s\n", sep, name, at)
}
