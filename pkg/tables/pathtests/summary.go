package pathtests

import (
	"fmt"
	"iter"
)

// Path is the combined result of the tests of one node.
type Path struct {
	Node  string
	State State
	Fault *Test // the first failed test, otherwise the first healed one; nil without one
}

// Paths groups rows by node. The rows must be in the order of the table. A path has failed if one of its tests has; otherwise it is healed if one of
// them is; otherwise it has passed if its echo has.
func Paths(rows iter.Seq[*Test]) iter.Seq[Path] {
	return func(yield func(Path) bool) {
		var p Path
		for t := range rows {
			if t.Node != p.Node {
				if p.Node != "" && !yield(p) {
					return
				}
				p = Path{Node: t.Node, State: Unknown}
			}
			switch {
			case t.State == Failed && p.State != Failed, t.State == Healed && p.Fault == nil:
				p.State, p.Fault = t.State, t
			case t.State == Passed && t.Kind == Echo:
				p.State = Passed
			}
		}
		if p.Node != "" {
			yield(p)
		}
	}
}

// Text returns a short result for a list of nodes: "ok", "blocked", "1400 bytes", "healed", "unknown".
func (p Path) Text() string {
	switch {
	case p.Fault == nil && p.State == Passed:
		return "ok"
	case p.Fault == nil, p.State == Healed:
		return string(p.State)
	case p.Fault.Fault == Large && p.Fault.Bytes > 0:
		return fmt.Sprintf("%d bytes", p.Fault.Bytes)
	}
	return string(p.Fault.Fault)
}

// Summary counts paths.
type Summary struct {
	Paths, Passed, Unknown int
	Failed                 []*Test // the first fault of each failed path, in the order of the table
	Healed                 []*Test // the first fault of each healed path
}

// Summarize counts the paths of rows in the order of the table.
func Summarize(rows iter.Seq[*Test]) (s Summary) {
	for p := range Paths(rows) {
		s.Paths++
		switch p.State {
		case Passed:
			s.Passed++
		case Unknown:
			s.Unknown++
		case Failed:
			s.Failed = append(s.Failed, p.Fault)
		case Healed:
			s.Healed = append(s.Healed, p.Fault)
		}
	}
	return s
}

// String returns one line, such as "7/9 passed, 1 unknown, 1 failed".
func (s Summary) String() string {
	text := fmt.Sprintf("%d/%d passed", s.Passed, s.Paths)
	if s.Unknown > 0 {
		text += fmt.Sprintf(", %d unknown", s.Unknown)
	}
	if len(s.Healed) > 0 {
		text += fmt.Sprintf(", %d healed", len(s.Healed))
	}
	if len(s.Failed) > 0 {
		text += fmt.Sprintf(", %d failed", len(s.Failed))
	}
	return text
}
