package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/nodekit"
)

// policyMaps lists the maps whose contents depend on policies only.
var policyMaps = []string{bpf.MapPolicy, bpf.MapPolicyRanges, bpf.MapCIDRs}

// policyMapsOf prints the contents of these maps in the kernel.
func policyMapsOf(t *testing.T, node *nodekit.Node) (text string) {
	t.Helper()
	for _, name := range policyMaps {
		out, err := node.Waggle(t.Context(), "map", "get", name)
		if err != nil {
			t.Fatal(err)
		}
		text += out
	}
	return text
}

var entryOf = regexp.MustCompile(`(?m)\bpolicy=(\d+) `)

// requireNothingHalf requires the maps to have exactly the entries of the tables: none is missing, and none remains of an interrupted change.
func requireNothingHalf(t *testing.T, node *nodekit.Node) {
	t.Helper()
	eventually(t, func() error {
		type row struct {
			ID              uint32
			Entries, Ranges int
		}
		var rows []row
		out, err := node.Waggle(t.Context(), "db", "show", "policy-entries", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &rows)
		}
		if err != nil {
			return err
		}
		want := map[string]int{}
		for _, r := range rows {
			want[fmt.Sprint(r.ID)] += r.Entries + r.Ranges
		}
		have := policyMapsOf(t, node)
		for _, match := range entryOf.FindAllStringSubmatch(have, -1) {
			want[match[1]]--
		}
		for id, missing := range want {
			if missing != 0 {
				return fmt.Errorf("policy %s: %d entries are missing, which less than 0 is too many\n%s\n%s", id, missing, out, have)
			}
		}
		named, err := node.Waggle(t.Context(), "db", "show", "named-cidrs")
		if err != nil {
			return err
		}
		if n := strings.Count(have, "family="); n != strings.Count(named, "Done") || strings.Contains(named, "true") {
			return fmt.Errorf("the map has %d address ranges, and there should be\n%s", n, named)
		}
		return nil
	})
}

// variedPolicies returns policies of the pods x/* that need entries of all kinds, different for each n; for every n, they allow x/b to x/a, and egress to z/*.
func variedPolicies(n int) string {
	var b strings.Builder
	for i := range 3 {
		fmt.Fprint(&b, networkPolicy("x", fmt.Sprintf("podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: 198.51.%d.0/24, "+
			"except: [198.51.%d.%d/32]}}, {namespaceSelector: {matchLabels: {team: w}}}], ports: [{port: %d, endPort: %d}, {port: %d, protocol: UDP}]}]",
			i, i, n%200, 1000+n%300, 3000+7*n%999, n%500+1))+"\n")
	}
	return b.String() + networkPolicy("x", "podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]")
}

// The agent is killed repeatedly while it writes policies. No denied packet passes, no allowed packet is lost, and afterwards each partly written policy is
// complete or removed.
func TestPrivilegedPolicy_AgentKilledDuringWrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(t, variedPolicies(0))
	deniedPeer, friends := w.knock(t, "z/a", "x/a"), w.talk(t, [2]string{"x/b", "x/a"})
	random := testseed.New(t)
	for i := range times(t, 4, 8) {
		for j := range 3 {
			w.write(t, "policies.yaml", variedPolicies(10*i+j+1)+w.mark())
			time.Sleep(time.Duration(random.Int64N(int64(20 * time.Millisecond))))
		}
		if err := errors.Join(w.KillAgent(t.Context()), w.StartAgent()); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			waitReady(t, w.Node)
		}
	}
	waitReady(t, w.Node)
	w.apply(t, variedPolicies(1))
	deniedPeer.unheard(t)
	undisturbed(t, friends)
	requireNothingHalf(t, w.Node)
	w.apply(t, "")
	requireNothingHalf(t, w.Node)
}

// Policies are added, changed and removed continuously beside traffic that they do not select, and beside traffic that all of them allow. No packet of either
// is lost, and at the end the numbers of all rows and entries are as before.
func TestPrivilegedPolicy_Churn_LosesNoPacketAndLeavesNothing(t *testing.T) {
	t.Parallel()
	const policies, rounds = 50, 20
	w := newWorld(t)
	w.apply(t, "")
	before := policyMapsOf(t, w.Node)
	objects := func() map[string]int {
		return count(t, w.Node, "policies", "policy-entries", "named-cidrs", "identities", "endpoint-policies")
	}
	start := objects()
	friends := w.talk(t, [2]string{"x/b", "x/a"}, [2]string{"z/a", "w/a"}, [2]string{theOutside, "z/a"})
	for n := range rounds {
		var b strings.Builder
		for i := range policies {
			if (i+n)%3 != 0 { // one third is missing
				fmt.Fprint(&b, networkPolicy("x", fmt.Sprintf("podSelector: {matchLabels: {app: a}}, ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}, "+
					"{from: [{ipBlock: {cidr: 198.51.100.%d/32}}], ports: [{port: %d, endPort: %d}]}]", i+n%100, i+1, 100+i+n))+"\n")
			}
		}
		w.apply(t, b.String())
	}
	undisturbed(t, friends)
	w.apply(t, "")
	eventually(t, func() error {
		// The marker's policy has another id each time.
		if now := policyMapsOf(t, w.Node); strings.Count(now, "\n") != strings.Count(before, "\n") {
			return fmt.Errorf("the maps had\n%s\nand have\n%s", before, now)
		}
		if now := objects(); fmt.Sprint(now) != fmt.Sprint(start) {
			return fmt.Errorf("the tables had %v rows, and have %v", start, now)
		}
		return nil
	})
	requireNothingHalf(t, w.Node)
}

// count returns the numbers of rows of tables.
func count(t *testing.T, node *nodekit.Node, tables ...string) map[string]int {
	t.Helper()
	rows := map[string]int{}
	for _, table := range tables {
		out, err := node.Waggle(t.Context(), "db", "show", table)
		if err != nil {
			t.Fatal(err)
		}
		rows[table] = strings.Count(out, "\n")
	}
	return rows
}

// Foreign changes to the maps of policies are repaired at the next verification; meanwhile no denied packet passes.
func TestPrivilegedRepair_PolicyMaps(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "--verify-interval=1s")
	w.apply(t, variedPolicies(7))
	requireNothingHalf(t, w.Node)
	n := &repairNode{Node: w.Node}
	before, classes := policyMapsOf(t, w.Node), n.classes(t)
	for _, s := range []struct {
		name string
		do   func() error
	}{
		{"entries are missing", func() error {
			return n.onMap(bpf.MapPolicy, func(m *ebpf.Map) error { return clearMap[bpf.PolicyKey, bpf.PolicyEntry](m) })
		}},
		{"ranges of ports are missing", func() error {
			return n.onMap(bpf.MapPolicyRanges, func(m *ebpf.Map) error { return clearMap[bpf.PolicyRangeKey, bpf.PolicyEntry](m) })
		}},
		{"address ranges are missing", func() error {
			return n.onMap(bpf.MapCIDRs, func(m *ebpf.Map) error { return clearMap[bpf.LpmKey, bpf.CIDR](m) })
		}},
		{"an allow becomes a deny", func() error {
			return n.onMap(bpf.MapPolicy, func(m *ebpf.Map) error {
				var key bpf.PolicyKey
				var value bpf.PolicyEntry
				for all := m.Iterate(); all.Next(&key, &value); {
					if value.Deny == 0 && key.Protocol != bpf.PolicyStop { // other entries would stay unchanged
						value.Deny = 1
						return m.Put(key, value)
					}
				}
				return errors.New("the map has no entry that allows")
			})
		}},
		{"unowned entries", func() error {
			return n.onMap(bpf.MapPolicy, func(m *ebpf.Map) error { return m.Put(bpf.PolicyKey{Policy: 77777}, bpf.PolicyEntry{}) })
		}},
		{"an address range has another number", func() error {
			return n.onMap(bpf.MapCIDRs, func(m *ebpf.Map) error {
				var key bpf.LpmKey
				var value bpf.CIDR
				if all := m.Iterate(); !all.Next(&key, &value) {
					return errors.Join(errors.New("the map is empty"), all.Err())
				}
				value.Identity += 1000
				return m.Put(key, value)
			})
		}},
		{"an address range leads to no wider one", func() error {
			return n.onMap(bpf.MapCIDRs, func(m *ebpf.Map) error {
				var key bpf.LpmKey
				var value bpf.CIDR
				if all := m.Iterate(); !all.Next(&key, &value) {
					return errors.Join(errors.New("the map is empty"), all.Err())
				}
				value.Bits = 0
				return m.Put(key, value)
			})
		}},
		{"identities have no classes", func() error {
			return n.onMap(bpf.MapIdentityClasses, func(m *ebpf.Map) error {
				for id := range classes {
					if err := m.Put(id, bpf.IdentityClasses{}); err != nil {
						return err
					}
				}
				return nil
			})
		}},
		{"an identity has foreign classes", func() error {
			return n.onMap(bpf.MapIdentityClasses, func(m *ebpf.Map) error {
				return m.Put(uint32(identity.ClusterMax), bpf.IdentityClasses{Cluster: 1, Namespace: 2})
			})
		}},
		{"an unowned address range", func() error {
			return n.onMap(bpf.MapCIDRs, func(m *ebpf.Map) error {
				prefix := netip.MustParsePrefix("203.0.113.0/24")
				return m.Put(bpf.NewLpmKey(prefix), bpf.NewCIDR(prefix, 0x01000001))
			})
		}},
	} {
		repairs := n.policyRepairs(t)
		if err := w.Do(s.do); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		eventually(t, func() error {
			if n.policyRepairs(t) == repairs {
				return fmt.Errorf("%s: no repair was counted", s.name)
			}
			if now := policyMapsOf(t, w.Node); now != before {
				return fmt.Errorf("%s: the maps have\n%s\nwant\n%s", s.name, now, before)
			}
			if now := n.classes(t); len(now) == 0 || !maps.Equal(now, classes) {
				return fmt.Errorf("%s: the classes of identities are %v, want %v", s.name, now, classes)
			}
			return nil
		})
	}
	w.compare(t, []service{{"icmp", 0}}, inbound("x/*", from("x/b")))
	for _, name := range []string{bpf.MapPolicy, bpf.MapCIDRs} {
		if rows := n.policyRepairs(t); !strings.Contains(rows, name) {
			t.Errorf("waggle db show drift-repairs says nothing of %s:\n%s", name, rows)
		}
	}
}

// classes returns the classes of identities in the kernel.
func (n *repairNode) classes(t *testing.T) map[uint32]bpf.IdentityClasses {
	t.Helper()
	all := map[uint32]bpf.IdentityClasses{}
	err := n.Do(func() error {
		return n.onMap(bpf.MapIdentityClasses, func(m *ebpf.Map) error {
			var id uint32
			var of bpf.IdentityClasses
			entries := m.Iterate()
			for entries.Next(&id, &of) {
				if of != (bpf.IdentityClasses{}) {
					all[id] = of
				}
			}
			return entries.Err()
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// policyRepairs returns the table of repairs. Each counted repair changes it.
func (n *repairNode) policyRepairs(t *testing.T) string {
	t.Helper()
	rows, err := n.Waggle(t.Context(), "db", "show", "drift-repairs")
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// The self-test and the setup of a node pass when every endpoint is isolated, and the pods of a node follow the mode over restarts.
func TestPrivilegedPolicy_ModesByRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	policies := networkPolicy("x", selectA+"ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]")
	w.apply(t, policies)
	for _, mode := range []struct {
		name string
		want func(flow) bool
	}{
		{"always", from(theNode)}, // no rule allows connections that pods begin
		{"default", inbound("x/a", from("x/b"))},
		{"never", all},
		{"default", inbound("x/a", from("x/b"))},
	} {
		w.AddAgentArgs("--enable-policy=" + mode.name)
		if err := errors.Join(w.StopAgent(t.Context()), w.StartAgent()); err != nil {
			t.Fatal(err)
		}
		waitReady(t, w.Node)
		w.compare(t, usual, mode.want)
		if err := w.Do(func() error {
			if out, err := setupCommand(t.Context(), w.Node, "--once").CombinedOutput(); err != nil {
				return fmt.Errorf("setup: %w\n%s", err, out)
			}
			return nil
		}); err != nil {
			t.Errorf("--enable-policy=%s: %v", mode.name, err)
		}
	}
}
