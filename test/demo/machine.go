package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/test/nodekit"
)

// machine returns the state of the machine that the demonstration must not change: links, routes, rules, mounts and sysctls, one entry per string.
func machine() (facts []string, err error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		facts = append(facts, fmt.Sprintf("link %d %s", l.Attrs().Index, l.Attrs().Name))
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		facts = append(facts, "route "+r.String())
	}
	rules, err := netlink.RuleList(netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		facts = append(facts, "rule "+r.String())
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		facts = append(facts, "mount "+strings.TrimSpace(line))
	}
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/rp_filter"} {
		value, err := os.ReadFile("/proc/sys/" + name)
		if err != nil {
			return nil, err
		}
		facts = append(facts, "sysctl "+name+" "+strings.TrimSpace(string(value)))
	}
	return facts, nil
}

func compareMachine(before []string) error {
	after, err := machine()
	if err == nil {
		err = nodekit.Changes(before, after)
	}
	if err != nil {
		return fmt.Errorf("the state of the machine has changed: %w", err)
	}
	return nil
}
