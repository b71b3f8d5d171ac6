package policy

// onlyKept looks for demands on labels that are not part of identities, by which no peer can be known. It tells whether a rule
// with the selector may be enforced; each such demand is a problem.
//
// Of a rule that allows, a demand for the label is never met, and one for its absence must not count as met: the rule allows
// nothing. Of a rule that denies, neither may narrow what is denied: the demand is taken out of the selector.
func (p *Policy) onlyKept(path string, s *Selector, deny bool, env *Environment) bool {
	ok := true
	var kept []Requirement
	for i := range s.Requirements {
		r := &s.Requirements[i]
		if env.keeps(r) {
			kept = append(kept, *r)
			continue
		}
		what := "no peer has it, so this peer of the rule is nobody"
		switch {
		case deny:
			what = "the rule denies peers whether or not they have it"
		case r.Operator != In && r.Operator != Exists:
			what, ok = outcome(false), false
		}
		p.add(Problem{Path: path, Reason: ReasonLabel, Message: "the label " + quote(r.Source+":"+r.Key) +
			" is not part of identities: " + what + "; choose peers by another label, or add it to --labels"})
	}
	if deny {
		s.Requirements = kept
	}
	return ok
}
