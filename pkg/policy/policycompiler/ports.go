package policycompiler

import (
	"cmp"
	"slices"
)

// run is a range of ports, including both ends.
type run struct{ low, high uint16 }

// runs are sorted, and neither overlap nor touch.
type runs []run

// span is a run of ports of a protocol that a rule names.
type span struct {
	protocol uint8
	run
	rule int // index into the rules of the rule set
}

// sortSpans sorts by protocol and first port.
func sortSpans(spans []span) {
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.low, b.low), cmp.Compare(a.rule, b.rule),
			cmp.Compare(a.high, b.high))
	})
}

// ofProtocol splits off the leading spans of a protocol.
func ofProtocol(spans []span, protocol uint8) (these, rest []span) {
	n := 0
	for n < len(spans) && spans[n].protocol == protocol {
		n++
	}
	return spans[:n], spans[n:]
}

// merge returns the union of sorted spans of one protocol.
func merge(spans []span) runs {
	if len(spans) == 0 {
		return nil
	}
	out := runs{spans[0].run}
	for _, s := range spans[1:] {
		if last := &out[len(out)-1]; !last.reaches(s.low) {
			out = append(out, s.run)
		} else {
			last.high = max(last.high, s.high)
		}
	}
	return out
}

// reaches reports whether a run that begins at low, and not before r, overlaps or continues r.
func (r run) reaches(low uint16) bool { return low <= r.high || low-1 == r.high }

// union returns the ports in a or b.
func (a runs) union(b runs) runs {
	if len(a) == 0 || len(b) == 0 {
		return append(a, b...)
	}
	all := append(slices.Clone(a), b...)
	slices.SortFunc(all, func(x, y run) int { return cmp.Compare(x.low, y.low) })
	out := all[:1]
	for _, r := range all[1:] {
		if last := &out[len(out)-1]; !last.reaches(r.low) {
			out = append(out, r)
		} else {
			last.high = max(last.high, r.high)
		}
	}
	return out
}

// minus returns the ports in a that are not in b.
func (a runs) minus(b runs) runs {
	if len(a) == 0 || len(b) == 0 {
		return a
	}
	var out runs
	for _, r := range a {
		for len(b) > 0 && b[0].high < r.low {
			b = b[1:]
		}
		rest := true
		for _, cut := range b {
			if cut.low > r.high {
				break
			}
			if cut.low > r.low {
				out = append(out, run{r.low, cut.low - 1})
			}
			if rest = cut.high < r.high; !rest {
				break
			}
			r.low = cut.high + 1
		}
		if rest {
			out = append(out, r)
		}
	}
	return out
}

// block is a block of ports that have their first bits in common.
type block struct {
	run
	bits uint8
}

// blocks yields the fewest blocks that make up r, in order.
func (r run) blocks(yield func(block) bool) {
	for low := r.low; ; {
		bits, size := uint8(16), uint16(1) // of the largest block that may begin at low; 0 is 65536
		for bits > 0 && low&(size<<1-1) == 0 && r.high-low >= size<<1-1 {
			bits, size = bits-1, size<<1
		}
		last := low + (size - 1)
		if !yield(block{run{low, last}, bits}) || last == r.high {
			return
		}
		low = last + 1
	}
}

// cover appends the fewest blocks that contain all of need and no port outside the spans, which are sorted and of one protocol. Each block names a rule that
// contains all of it, or else a rule that contains a part of it.
func cover(out []entry, need runs, spans []span, cookies []uint32, deny bool) []entry {
	if len(need) == 0 {
		return out
	}
	naming := naming{spans: spans, best: -1}
	for _, free := range merge(spans) {
		for b := range free.blocks {
			for len(need) > 0 && need[0].high < b.low {
				need = need[1:]
			}
			if len(need) == 0 {
				return out
			}
			if need[0].low > b.high {
				continue
			}
			out = append(out, entry{rule: cookies[naming.of(b.run)], port: b.low, protocol: spans[0].protocol, bits: b.bits, deny: deny})
		}
	}
	return out
}

// naming finds the rules of blocks that are requested in order.
type naming struct {
	spans []span // spans that begin after the last block
	best  int    // rule of the earlier span with the highest end; -1 at first
	high  uint16 // end of that span
}

func (n *naming) of(b run) int {
	n.upTo(b.low)
	if n.best < 0 || n.high < b.low { // the first span of the block begins inside it
		n.upTo(b.high)
	}
	return n.best
}

func (n *naming) upTo(low uint16) {
	for ; len(n.spans) > 0 && n.spans[0].low <= low; n.spans = n.spans[1:] {
		if s := n.spans[0]; n.best < 0 || s.high > n.high {
			n.best, n.high = s.rule, s.high
		}
	}
}
