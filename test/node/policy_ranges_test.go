package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// policyUsage is the use of the maps whose contents depend on policies only.
type policyUsage struct {
	maps    map[string]int // entries in the kernel, by map
	entries map[string]int // entries and ranges of ports in policy-entries, by the policies from which they are compiled
	cidrs   int            // rows of named-cidrs
}

// settledUsage waits until the maps contain nothing of previous policies, and returns their use.
func (w *world) settledUsage(t *testing.T) (u policyUsage) {
	t.Helper()
	requireNothingHalf(t, w.Node)
	eventually(t, func() error {
		u = policyUsage{maps: map[string]int{}, entries: map[string]int{}}
		var rows []struct {
			Policies               []string
			Entries, Ranges, Users int
		}
		out, err := w.Waggle(t.Context(), "db", "show", "policy-entries", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &rows)
		}
		if err != nil {
			return err
		}
		for _, r := range rows {
			if r.Users == 0 {
				return fmt.Errorf("entries of previous policies remain:\n%s", out)
			}
			u.entries[strings.Join(r.Policies, ", ")] += r.Entries + r.Ranges
		}
		for _, name := range policyMaps {
			text, err := w.Waggle(t.Context(), "map", "get", name)
			if err != nil {
				return err
			}
			u.maps[name] = strings.Count(text, "\n") - 1 // without the heading
		}
		named, err := w.Waggle(t.Context(), "db", "show", "named-cidrs")
		u.cidrs = strings.Count(named, "Done")
		return err
	})
	return u
}

// manyAddresses returns n CIDRs: the addresses of some parties, and unused addresses, half of them of each family.
func (w *world) manyAddresses(n int, parties ...string) (cidrs []string) {
	for _, name := range parties {
		for _, addr := range w.party(name).addrs {
			cidrs = append(cidrs, netip.PrefixFrom(addr, addr.BitLen()).String())
		}
	}
	for i := len(cidrs); i < n; i++ {
		if i%2 == 0 {
			cidrs = append(cidrs, fmt.Sprintf("50.0.%d.%d/32", i>>8, i&255))
		} else {
			cidrs = append(cidrs, fmt.Sprintf("2001:db8:50::%x/128", i))
		}
	}
	return cidrs
}

// rangesWithoutSubject adds policies of other tenants that select no endpoint of the node and name 40,000 addresses, in texts that an API server accepts. They
// do not change the maps of the node, nor the verdicts of a rule that contains these addresses. With an endpoint of such a policy on the node, that rule still
// has the same number of entries.
func (w *world) rangesWithoutSubject(t *testing.T) {
	const tenantFile = "tenant.json"
	excepted := w.party("w/a").addrs
	wide := renamed("wide", networkPolicy("x", selectA+fmt.Sprintf("ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [%s/32]}}, "+
		"{ipBlock: {cidr: '::/0', except: ['%s/128']}}]}]", excepted[0], excepted[1])))
	want := inbound("x/a", func(f flow) bool { return f.from != "w/a" })
	w.apply(t, wide)
	w.compare(t, usual, want)
	before := w.settledUsage(t)
	// step changes policies while w/a sends to x/a, and compares all connections afterwards.
	step := func(t *testing.T, change func(), want func(flow) bool) {
		t.Helper()
		denied := w.knock(t, "w/a", "x/a")
		change()
		denied.unheard(t)
		w.compare(t, usual, want)
	}

	t.Run("no endpoint is selected", func(t *testing.T) {
		step(t, func() {
			w.write(t, tenantFile, w.tenantPolicies(t, 20_000))
			w.awaitRows(t, "policies", `NetworkPolicy tenant/many +2 +0 +enforce +0`, `CiliumNetworkPolicy z/many +2 +0 +enforce +0`)
			w.apply(t, wide)
		}, want)
		w.requireUsage(t, before)
	})
	t.Run("an endpoint is selected", func(t *testing.T) {
		cidrs := w.manyAddresses(1000, theOutside, "x/b", "w/a")
		local := networkPolicy("z", selectA+"ingress: [{from: [{ipBlock: {cidr: '"+strings.Join(cidrs, "'}}, {ipBlock: {cidr: '")+"'}}]}]")
		step(t, func() { w.apply(t, wide+"\n"+local) }, both(want, inbound("z/a", from(theOutside+" x/b w/a"))))
		now := w.settledUsage(t)
		const rule = "NetworkPolicy x/wide"
		if now.entries[rule] == 0 || now.entries[rule] != before.entries[rule] {
			t.Errorf("%s had %d entries, and has %d beside other ranges", rule, before.entries[rule], now.entries[rule])
		}
		if added := len(cidrs) - 2; now.cidrs != before.cidrs+added { // x/wide excepts the addresses of w/a
			t.Errorf("%d ranges had numbers, and %d have numbers with %d more", before.cidrs, now.cidrs, added)
		}
	})
	t.Run("the policies are deleted", func(t *testing.T) {
		if err := os.Remove(filepath.Join(w.ManifestsDir(), tenantFile)); err != nil {
			t.Fatal(err)
		}
		step(t, func() { w.apply(t, wide) }, want)
		w.requireUsage(t, before)
	})
}

// tenantPolicies returns two policies without a subject on the node that name n addresses each, as JSON: one in a namespace without pods, and one in a namespace
// with pods that it does not select.
func (w *world) tenantPolicies(t *testing.T, n int) (text string) {
	t.Helper()
	const maxObject = 1 << 20 // bytes that any API server stores
	cidrs := w.manyAddresses(2*n, theOutside, "x/a", "x/b", "x/c", "w/a", "w/b", "z/a")
	var blocks []any
	for _, cidr := range cidrs[:n] {
		blocks = append(blocks, map[string]any{"ipBlock": map[string]any{"cidr": cidr}})
	}
	half := n + n/2
	type fields = map[string]any
	for _, object := range []fields{
		{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": fields{"namespace": "tenant", "name": "many"},
			"spec": fields{"podSelector": fields{}, "policyTypes": []string{"Ingress", "Egress"}, "ingress": []any{fields{"from": blocks[:n/2]}},
				"egress": []any{fields{"to": blocks[n/2:]}}}},
		{"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": fields{"namespace": "z", "name": "many"},
			"spec": fields{"endpointSelector": fields{"matchLabels": fields{"app": "nobody"}}, "ingressDeny": []any{fields{"fromCIDR": cidrs[n:half]}},
				"egress": []any{fields{"toCIDR": cidrs[half:]}}}},
	} {
		one, err := json.Marshal(object)
		if err != nil || len(one) > maxObject {
			t.Fatalf("a policy has %d bytes: %v", len(one), err)
		}
		text += string(one) + "\n"
	}
	return text
}

// requireUsage requires that policies use the maps as before.
func (w *world) requireUsage(t *testing.T, before policyUsage) {
	t.Helper()
	now := w.settledUsage(t)
	if !maps.Equal(now.maps, before.maps) || !maps.Equal(now.entries, before.entries) || now.cidrs != before.cidrs {
		t.Errorf("policies used %+v, and use %+v", before, now)
	}
}

// awaitRows waits until a table has a row that matches each pattern.
func (w *world) awaitRows(t *testing.T, table string, patterns ...string) {
	t.Helper()
	eventually(t, func() error {
		text, err := w.Waggle(t.Context(), "db", "show", table)
		for _, pattern := range patterns {
			if !regexp.MustCompile(`(?m)^` + pattern + ` *$`).MatchString(text) {
				err = errors.Join(err, fmt.Errorf("no row matches %s:\n%s", pattern, text))
			}
		}
		return err
	})
}

// smallQuota is the quota of address ranges of a namespace in the world of Cilium's policies. Only the cases of [world.rangesBeyondQuota] exceed it.
const smallQuota = 16

// A namespace names more ranges than its quota. Rules about a range beyond the quota allow nothing and deny everything, the policy that names it reports that,
// and other policies of this and of other namespaces stay enforced.
func (w *world) rangesBeyondQuota(t *testing.T) {
	w.apply(t, "") // ranges with a number would count first
	eventually(t, func() error {
		if u := w.settledUsage(t); u.cidrs != 0 {
			return fmt.Errorf("ranges of previous policies remain: %+v", u)
		}
		return nil
	})
	var low []string // ranges before those of all parties in the order of addresses
	for i := range smallQuota {
		low = append(low, fmt.Sprintf("1.0.0.%d/32", i))
	}
	within, used := low[0], strings.Join(low, ", ")
	block := func(party string) string {
		return "{ipBlock: {cidr: " + party + "/4}}, {ipBlock: {cidr: " + party + "/6}}"
	}
	others := []string{networkPolicy("w", selectA+"ingress: [{from: ["+block("@z/a")+"]}]"),
		networkPolicy("x", "podSelector: {matchLabels: {app: c}}, ingress: [{from: ["+block("@w/b")+"]}]")}
	with := func(policy string) []string { return append(slices.Clone(others), policy) }
	intact := both(inbound("w/a", from("z/a")), inbound("x/c", from("w/b")))
	large := func(ingress string) string {
		return renamed("large", networkPolicy("x", selectA+"ingress: ["+ingress+"]"))
	}
	overflow := func(kind string, count int) []string {
		return []string{fmt.Sprintf("%s x/large spec: Overflow: %d of its address ranges are not in force: ", kind, count)}
	}
	w.runReported(t, []reportedCase{
		{policyCase{"within the quotas", with(large("{from: [{ipBlock: {cidr: 0.0.0.0/0}}, {ipBlock: {cidr: '::/0'}}]}")), nil, intact}, nil},
		// The ranges of the previous case keep their numbers. Of 16 and 2 exceptions, 12 are within the quota.
		{policyCase{"exceptions beyond the quota", with(large("{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [" + used + ", @x/b/4]}}, {ipBlock: {cidr: '::/0', except: [@x/b/6]}}]}")),
			nil, both(intact, inbound("x/a", none))}, overflow("NetworkPolicy", 6)},
		// Of 2 ranges of the other policy, 16 and 2 more, the last 4 are beyond the quota.
		{policyCase{"an allow beyond the quota", with(large("{from: [{ipBlock: {cidr: " + strings.Join(low, "}}, {ipBlock: {cidr: ") + "}}, " + block("@x/b") + "]}")), nil,
			both(intact, inbound("x/a", none))}, overflow("NetworkPolicy", 4)},
		{policyCase{"a deny beyond the quota", with(renamed("large", ciliumPolicy("x", subjectA+"ingress: [{fromEntities: [all]}], "+
			"ingressDeny: [{fromCIDR: ["+used+", @outside/4, @outside/6]}]"))), nil, both(intact, inbound("x/a", none))}, overflow("CiliumNetworkPolicy", 4)},
		{policyCase{"fewer ranges", with(large("{from: [{ipBlock: {cidr: " + within + "}}, " + block("@x/b") + "]}")), nil, both(intact, inbound("x/a", from("x/b")))}, nil},
		{policyCase{"policies of the whole cluster have no quota", []string{clusterwidePolicy(subjectA + "ingress: [{fromCIDR: [" + used + ", @outside/4, @outside/6]}]")}, nil,
			inbound("x/a w/a z/a", from(theOutside))}, nil},
	})
}
