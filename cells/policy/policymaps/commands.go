package policymaps

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/hive"
	"github.com/cilium/hive/script"

	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
)

// commands returns script commands that print the contents of the maps.
func commands(entries entryMaps, named cidrMap, known identityMap, classes classMap) hive.ScriptCmdsOut {
	show := func(summary string, print func() (string, error)) script.Cmd {
		return script.Command(script.CmdUsage{Summary: summary}, func(_ *script.State, args ...string) (script.WaitFunc, error) {
			if len(args) > 0 {
				return nil, script.ErrUsage
			}
			text, err := print()
			return func(*script.State) (string, string, error) { return text, "", err }, nil
		})
	}
	return hive.NewScriptCmds(map[string]script.Cmd{
		"policy/entries":    show("Show the entries of the maps policy and policy_ranges, sorted", func() (string, error) { return printEntries(entries) }),
		"policy/identities": show("Show the identities of the map known_identities, sorted", func() (string, error) { return printIdentities(known) }),
		"policy/classes":    show("Show the classes of identities in the map identity_classes, sorted", func() (string, error) { return printClasses(classes) }),
		"policy/cidrs":      show("Show the entries of the map cidrs, sorted", func() (string, error) { return printCIDRs(named) }),
	})
}

func printEntries(maps entryMaps) (string, error) {
	type line struct {
		id uint32
		policycompiler.Entry
	}
	var lines []line
	var c cursor
	for end := false; !end; {
		var some map[entryKey]policycompiler.Entry
		var err error
		if some, end, err = maps.Some(&c, batch); err != nil {
			return "", err
		}
		for k, e := range some {
			lines = append(lines, line{k.ID, e})
		}
	}
	slices.SortFunc(lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Identity, b.Identity),
			cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port), cmp.Compare(a.PortBits, b.PortBits))
	})
	var b strings.Builder
	for _, l := range lines {
		verdict := "allow"
		if l.Deny {
			verdict = "deny"
		}
		fmt.Fprintf(&b, "policy %d: %s %s\n", l.id, verdict, describe(l.Key))
	}
	return b.String(), nil
}

// describe returns the peers and the ports of a key as text.
func describe(k policycompiler.Key) string {
	who := map[policycompiler.Kind]string{policycompiler.Any: "all peers", policycompiler.Identity: fmt.Sprintf("identity %d", k.Identity),
		policycompiler.Class: fmt.Sprintf("class %d", k.Identity),
		policycompiler.CIDR:  fmt.Sprintf("cidr %d", k.Identity), policycompiler.CIDROutside: fmt.Sprintf("cidr %d, outside", k.Identity)}[k.Kind]
	switch {
	case k.Protocol == 0:
		return who
	case k.IsStop():
		return who + ", as the ranges around it"
	case k.PortBits == 0:
		return fmt.Sprintf("%s protocol %d", who, k.Protocol)
	case k.IsRange():
		return fmt.Sprintf("%s protocol %d ports %d-%d", who, k.Protocol, k.Port, k.LastPort())
	}
	return fmt.Sprintf("%s protocol %d port %d", who, k.Protocol, k.Port)
}

func printCIDRs(named cidrMap) (string, error) {
	all, err := named.Dump()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, p := range sortedPrefixes[uint32](all) {
		fmt.Fprintf(&b, "%s: %d\n", p, all[p])
	}
	return b.String(), nil
}

func printIdentities(known identityMap) (string, error) {
	words, err := known.Dump()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, id := range identitiesIn(words) {
		fmt.Fprintln(&b, id)
	}
	return b.String(), nil
}
