// Package nftguard keeps the nftables rules that hold where programs do not. Pod links fail closed: a packet that came from
// a pod link and does not bear the mark of our programs is dropped, so a link whose filter somebody took away passes nothing
// to the stack. And nobody but the node speaks with the node's addresses: a packet from any device that has one of them as
// its source is dropped, so that neither a pod nor the node takes it for the node's own. Nor does anybody outside speak with
// the address of a pod that is here.
//
// Everything stands in the table "inet waggle", which is ours alone; no other table is read or written. Each call opens
// a socket in the network namespace of the calling thread.
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

// Rule is what the guard lets pass: packets that are from no link of the groups, or that bear the mark; and whose source is
// no address of this node. The kernel holds rules for each group and for each family.
type Rule struct {
	Groups     []uint32 // link groups of pod links
	Mark, Mask uint32   // a marked packet has mark&Mask == Mark
	// NodeDevice is where, beside lo, packets of this node's own come in. Empty leaves the check of sources out, for
	// kernels that have no nft fib.
	NodeDevice string
	// PodDevice is where the routes to pods of this node lead: what comes from no pod link must not have a source to which
	// one of them leads. Empty, or without NodeDevice, that is not checked.
	PodDevice string
}

// State is what the kernel has.
type State struct {
	// Installed is true when the table holds exactly our chain with exactly our rules.
	Installed bool
	// What the rules have dropped since they were installed.
	Dropped
}

// Install puts the rule in place. What stands in the table is replaced as a whole in one transaction, so there is no
// moment without a rule; the counter begins at zero.
func Install(r Rule) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := ours()
	conn.AddTable(table) // so that the deletion finds one
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

// Read looks at the kernel.
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

// installed lists the rules of our chain; none when the table does not hold exactly that chain.
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

// Delete removes our table. One that is gone is success.
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
