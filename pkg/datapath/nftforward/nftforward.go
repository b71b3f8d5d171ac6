// Package nftforward finds the nftables chains that drop packets which a node forwards. Rules of iptables-nft are nftables rules and are included;
// rules of iptables-legacy are not.
//
// The rules are evaluated for a packet of a TCP connection: the first, or one that connection tracking classifies as invalid. A result that depends on an
// unknown property of the packet, such as its mark or its ports, is undecided, and an undecided packet is not reported: a reported packet is dropped for all
// unknown values. An exception is a rule whose only condition is of a kind that the library does not parse.
//
// Each call opens a socket in the network namespace of the calling thread. It changes no rules.
package nftforward

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Packet is a packet of a TCP connection that the node forwards.
type Packet struct {
	In, Out string     // names of the devices; the route of Source does not lead to In
	InGroup uint32     // link group of In
	Source  netip.Addr // decides the family
	// Invalid means that connection tracking classifies the packet as invalid, as when it sees only one direction of the connection. Otherwise the packet is the
	// first of its connection.
	Invalid bool
}

// Chain identifies a base chain.
type Chain struct{ Family, Table, Name string }

func (c Chain) String() string {
	return fmt.Sprintf("chain %s of nftables table %s %s", c.Name, c.Family, c.Table)
}

// Dropping returns the base chains of the hooks prerouting and forward that drop one of the packets, sorted, and the number of chains and
// rules that were read. A kernel without nftables has none.
func Dropping(packets []Packet) (chains []Chain, read int, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, 0, fmt.Errorf("open nftables: %w", err)
	}
	all, err := conn.ListChains()
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("list nftables chains: %w", err)
	}
	read = len(all)
	for _, base := range all {
		if !filtersForwarded(base) {
			continue
		}
		rules := ruleset{conn: conn, table: base.Table, rules: map[string][]*nftables.Rule{}}
		for _, p := range packets {
			dropped, err := rules.drops(base, p)
			if err != nil {
				return nil, read, err
			}
			if c := (Chain{families[base.Table.Family], base.Table.Name, base.Name}); dropped && !slices.Contains(chains, c) {
				chains = append(chains, c)
			}
		}
		for _, some := range rules.rules {
			read += len(some)
		}
	}
	slices.SortFunc(chains, func(a, b Chain) int { return strings.Compare(a.String(), b.String()) })
	return chains, read, nil
}

// families holds the names of the families whose hooks see IP packets. Other families use the same numbers for different hooks.
var families = map[nftables.TableFamily]string{
	nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
}

// filtersForwarded reports whether a chain sees packets before they leave the node and may drop them.
func filtersForwarded(c *nftables.Chain) bool {
	return c.Hooknum != nil && families[c.Table.Family] != "" && c.Type == nftables.ChainTypeFilter &&
		(*c.Hooknum == *nftables.ChainHookForward || *c.Hooknum == *nftables.ChainHookPrerouting)
}

// ruleset reads the rules and sets of one table on demand.
type ruleset struct {
	conn  *nftables.Conn
	table *nftables.Table
	rules map[string][]*nftables.Rule // by chain; the chains that were read
}

// chainLimit limits the number of chains of one table that are read.
const chainLimit = 256

// errTooMany ends the evaluation of a table, which is then undecided.
var errTooMany = errors.New("too many chains")

func (r *ruleset) of(chain string) ([]*nftables.Rule, error) {
	if rules, found := r.rules[chain]; found {
		return rules, nil
	}
	if len(r.rules) >= chainLimit {
		return nil, errTooMany
	}
	rules, err := r.conn.GetRules(r.table, &nftables.Chain{Name: chain, Table: r.table})
	if err != nil {
		return nil, fmt.Errorf("list rules of nftables chain %s: %w", chain, err)
	}
	r.rules[chain] = rules
	return rules, nil
}

// elements returns the elements of a set of single values. It returns false for other sets.
func (r *ruleset) elements(name string) ([]nftables.SetElement, bool, error) {
	set, err := r.conn.GetSetByName(r.table, name)
	if err != nil {
		return nil, false, fmt.Errorf("read nftables set %s: %w", name, err)
	}
	if set.Interval || set.IsMap || set.Concatenation || set.Dynamic {
		return nil, false, nil
	}
	elements, err := r.conn.GetSetElements(set)
	if err != nil {
		return nil, false, fmt.Errorf("read nftables set %s: %w", name, err)
	}
	return elements, true, nil
}

// drops reports whether a base chain drops a packet for certain.
func (r *ruleset) drops(base *nftables.Chain, p Packet) (bool, error) {
	if ipv6 := p.Source.Is6(); base.Table.Family == nftables.TableFamilyIPv4 && ipv6 || base.Table.Family == nftables.TableFamilyIPv6 && !ipv6 {
		return false, nil
	}
	if *base.Hooknum == *nftables.ChainHookPrerouting {
		p.Out = "" // not known in this hook
	}
	outcome, err := (&evaluation{ruleset: r, packet: p}).chain(base.Name, 0)
	if errors.Is(err, errTooMany) {
		return false, nil
	}
	dropsRest := base.Policy != nil && *base.Policy == nftables.ChainPolicyDrop
	return outcome == dropped || outcome == continues && dropsRest, err
}
