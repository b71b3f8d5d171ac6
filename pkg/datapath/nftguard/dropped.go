package nftguard

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Dropped counts dropped packets by reason.
type Dropped struct {
	Unmarked   Count // from a pod link, without the mark of Waggle's programs
	NodeSource Count // from a device, with an address of this node, or of a pod on this node, as its source
}

// Count is the packets and bytes of one reason.
type Count struct{ Packets, Bytes uint64 }

// ReadDropped reads the counters of all rules in the chain, also of rules of another version.
func ReadDropped() (d Dropped, err error) {
	conn, err := nftables.New()
	if err != nil {
		return d, fmt.Errorf("open nftables: %w", err)
	}
	rules, err := installed(conn)
	for _, rule := range rules {
		d.add(rule, *counterOf(rule))
	}
	return d, err
}

func (d *Dropped) add(rule *nftables.Rule, counter expr.Counter) {
	count := &d.Unmarked
	if slices.ContainsFunc(rule.Exprs, func(e expr.Any) bool { _, is := e.(*expr.Fib); return is }) {
		count = &d.NodeSource
	}
	count.Packets += counter.Packets
	count.Bytes += counter.Bytes
}

// counterOf returns the counter of a rule, or a zero counter for a rule without one.
func counterOf(rule *nftables.Rule) *expr.Counter {
	for _, e := range rule.Exprs {
		if c, ok := e.(*expr.Counter); ok {
			return c
		}
	}
	return &expr.Counter{}
}
