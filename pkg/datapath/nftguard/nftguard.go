// Package nftguard manages the nftables rules that protect the node when the BPF programs are missing. Pod links fail closed: a packet from a pod
// link without the mark of the programs is dropped. Source addresses of this node are reserved: a packet with such a source from any other device is
// dropped before it reaches the node or a pod. The same holds for addresses of local pods on packets that come from no pod link.
//
// The package owns the table "inet waggle" and touches no other table. Each call opens a socket in the network namespace of the calling thread.
package nftguard

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Names in the kernel.
const (
	TableName = "waggle"
	ChainName = "prerouting"
)

// Rule describes the accepted packets: packets from a link outside the groups, or with the mark, whose source is no address of this node. The kernel holds
// rules for each group and for each family.
type Rule struct {
	Groups     []uint32 // link groups of pod links
	Mark, Mask uint32   // a marked packet has mark&Mask == Mark
	// NodeDevice is the device, beside lo, on which the node receives its own packets. Empty disables the source checks, for kernels without nft fib.
	NodeDevice string
	// PodDevice is the device of the routes to local pods. A packet that comes from no pod link must not have a source whose route uses it. Empty
	// disables this check; so does an empty NodeDevice.
	PodDevice string
	// AnyMarked accepts marked packets of all devices, not only of the groups: programs of other devices have compared their sources.
	AnyMarked bool
}

// State is the state of the table in the kernel.
type State struct {
	// Installed is true when the table holds exactly Waggle's chain with exactly Waggle's rules.
	Installed bool
	// Dropped counts packets since the rules were installed.
	Dropped
}

// Install replaces the content of the table in one transaction, so the rules apply without a gap. The counters start at zero.
func Install(r Rule) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := ours()
	conn.AddTable(table) // DelTable needs an existing table
	conn.DelTable(table)
	conn.AddTable(table)
	accept := nftables.ChainPolicyAccept
	chain := conn.AddChain(&nftables.Chain{
		Name: ChainName, Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw, Policy: &accept,
	})
	for _, exprs := range r.expressions() {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("install nftables table inet %s: %w%s", TableName, err, remedy(err))
	}
	return nil
}

// Read reads the rules and counters from the kernel.
func Read(r Rule) (State, error) {
	conn, err := nftables.New()
	if err != nil {
		return State{}, fmt.Errorf("open nftables: %w", err)
	}
	rules, err := installed(conn)
	wanted := r.expressions()
	if err != nil || len(rules) != len(wanted) {
		return State{}, err
	}
	s := State{Installed: true}
	for i, rule := range rules {
		counter := counterOf(rule)
		s.Dropped.add(rule, *counter)
		*counter = expr.Counter{}
		if !reflect.DeepEqual(rule.Exprs, wanted[i]) {
			return State{}, nil
		}
	}
	return s, nil
}

// installed returns the rules of the chain, or none if the table does not have exactly that chain.
func installed(conn *nftables.Conn) ([]*nftables.Rule, error) {
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	var mine []*nftables.Chain
	for _, c := range chains {
		if c.Table.Name == TableName {
			mine = append(mine, c)
		}
	}
	if len(mine) != 1 || !isGuardChain(mine[0]) {
		return nil, nil
	}
	rules, err := conn.GetRules(ours(), mine[0])
	if err != nil {
		return nil, fmt.Errorf("list rules of nftables table inet %s: %w", TableName, err)
	}
	return rules, nil
}

// Delete removes the table. It succeeds if the table does not exist.
func Delete() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	conn.DelTable(ours())
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete nftables table inet %s: %w", TableName, err)
	}
	return nil
}

func ours() *nftables.Table {
	return &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
}

func isGuardChain(c *nftables.Chain) bool {
	return c.Name == ChainName && c.Type == nftables.ChainTypeFilter &&
		c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookPrerouting &&
		c.Priority != nil && *c.Priority == *nftables.ChainPriorityRaw
}

func remedy(err error) string {
	if errors.Is(err, unix.EPERM) {
		return " (the agent needs CAP_NET_ADMIN)"
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return " (the kernel needs CONFIG_NF_TABLES and CONFIG_NF_TABLES_INET)"
	}
	return ""
}
