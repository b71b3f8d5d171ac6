// Package nftguard keeps the nftables rule that makes pod links fail closed: a packet that came from a pod link and does
// not bear the mark of our programs is dropped. So a link whose filter somebody took away passes nothing to the stack.
//
// Everything stands in the table "inet waggle", which is ours alone; no other table is read or written. Each call opens
// a socket in the network namespace of the calling thread.
package nftguard

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Names in the kernel.
const (
	TableName = "waggle"
	ChainName = "prerouting"
)

// Rule is what the guard lets pass: packets that are from no link of the groups, or that bear the mark. The kernel holds
// one rule for each group.
type Rule struct {
	Groups     []uint32 // link groups of pod links
	Mark, Mask uint32   // a marked packet has mark&Mask == Mark
}

// State is what the kernel has.
type State struct {
	// Installed is true when the table holds exactly our chain with exactly our rules.
	Installed bool
	// Packets and Bytes is what the rules have dropped since they were installed.
	Packets, Bytes uint64
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
	for _, group := range r.Groups {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: r.expressions(group, 0, 0)})
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
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return State{}, fmt.Errorf("list nftables chains: %w", err)
	}
	var mine []*nftables.Chain
	for _, c := range chains {
		if c.Table.Name == TableName {
			mine = append(mine, c)
		}
	}
	if len(mine) != 1 || !isGuardChain(mine[0]) {
		return State{}, nil
	}
	rules, err := conn.GetRules(ours(), mine[0])
	if err != nil {
		return State{}, fmt.Errorf("list rules of nftables table inet %s: %w", TableName, err)
	}
	if len(rules) != len(r.Groups) {
		return State{}, nil
	}
	s := State{Installed: true}
	for i, group := range r.Groups {
		packets, bytes, same := r.compare(group, rules[i])
		if !same {
			return State{}, nil
		}
		s.Packets, s.Bytes = s.Packets+packets, s.Bytes+bytes
	}
	return s, nil
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

// expressions spells the rule of a group: iifgroup is it, mark&mask is not the magic, count, drop.
func (r Rule) expressions(group uint32, packets, bytes uint64) []expr.Any {
	u32 := binaryutil.NativeEndian.PutUint32
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: u32(group)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: u32(r.Mask), Xor: u32(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: u32(r.Mark)},
		&expr.Counter{Packets: packets, Bytes: bytes},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}

// compare tells whether rule is ours in all but the counter, and reads the counter.
func (r Rule) compare(group uint32, rule *nftables.Rule) (packets, bytes uint64, same bool) {
	for _, e := range rule.Exprs {
		if c, ok := e.(*expr.Counter); ok {
			packets, bytes = c.Packets, c.Bytes
		}
	}
	return packets, bytes, reflect.DeepEqual(rule.Exprs, r.expressions(group, packets, bytes))
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
