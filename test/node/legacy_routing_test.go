package node_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/test/nodekit"
)

// forwardDrops returns rules of a user that drop packets which a node forwards from one pod to another, in both families.
func forwardDrops(from, to *nodekit.Pod) []ruleText {
	var b strings.Builder
	b.WriteString("add table inet user\nadd chain inet user forward { type filter hook forward priority 0; }\n")
	for _, family := range families {
		ip := map[bool]string{false: "ip", true: "ip6"}[family.ipv6]
		fmt.Fprintf(&b, "add rule inet user forward %s saddr %s %s daddr %s drop\n", ip, from.Addr(family.ipv6), ip, to.Addr(family.ipv6))
	}
	return []ruleText{{rulesN, b.String()}}
}

// The first of two nodes has --enable-host-legacy-routing: rules of its chain FORWARD apply to packets between its pods and the pod of the other node, in both
// directions. The other node has the default: its rules do not see these packets. Without rules the pods reach each other.
func TestPrivilegedLegacyRouting_ForwardRulesApply(t *testing.T) {
	t.Parallel()
	for mode, args := range map[string][]string{"tunnel": nil, "native": {"--auto-direct-node-routes"}, "hybrid": nil} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c, all := newKubeCluster(t, 2, append(args, "--routing-mode="+mode)...)
			one, two := all[0], all[1]
			one.AddAgentArgs("--enable-host-legacy-routing")
			startAgents(t, c)
			near, far := one.startPod(t, "near", map[string]string{"app": "near"}), two.startPod(t, "far", map[string]string{"app": "far"})
			for _, family := range families {
				awaitIdentity(t, two, near.Addr(family.ipv6), one.identityOf(t, near).Identity)
				awaitIdentity(t, one, far.Addr(family.ipv6), two.identityOf(t, far).Identity)
			}
			if mode == agentconfig.RoutingHybrid {
				bothDirect(t, all)
			}
			shows(t, one.Node, "status --verbose", "Host: Legacy", "--enable-host-legacy-routing=true")
			shows(t, two.Node, "status", "Host: BPF")
			ways := map[*nodekit.Pod]*nodekit.Pod{near: far, far: near}
			each := func(reach func(from, to *nodekit.Pod, ipv6 bool) error) (err error) {
				for _, family := range families {
					for from, to := range ways {
						err = errors.Join(err, reach(from, to, family.ipv6))
					}
				}
				return err
			}
			ping := func(from, to *nodekit.Pod, ipv6 bool) error { return nodekit.Ping(from, to.Addr(ipv6), 1000) }
			eventually(t, func() error { // once all hooks run one generation
				before, err := byStack(two)
				err = errors.Join(err, each(ping))
				after, failed := byStack(two)
				if err = errors.Join(err, failed); err == nil && after != before {
					err = fmt.Errorf("the stack of %s has forwarded %d packets", two.Name(), after-before)
				}
				return err
			})
			for _, tc := range []struct {
				node  kubeNode
				holds bool
			}{{one, true}, {two, false}} {
				for from, to := range ways {
					loadRules(t, tc.node.Node, forwardDrops(from, to))
					for _, family := range families {
						try := nodekit.Ping
						if tc.holds {
							try = nodekit.PingBriefly
						}
						err := try(from, to.Addr(family.ipv6), 56)
						if (err != nil) != tc.holds {
							t.Errorf("%s: %s drops from %s to %s in its chain forward, and ping says %v", family.name, tc.node.Name(), from.Name, to.Name, err)
						}
					}
					loadRules(t, tc.node.Node, []ruleText{{rulesN, "delete table inet user"}})
				}
			}
			if err := each(func(from, to *nodekit.Pod, ipv6 bool) error {
				addr := to.Addr(ipv6)
				return errors.Join(ping(from, to, ipv6), nodekit.TCP(from, to, addr, 1<<18), nodekit.UDP(from, to, addr, 100))
			}); err != nil {
				t.Errorf("without rules: %v", err)
			}
		})
	}
}
