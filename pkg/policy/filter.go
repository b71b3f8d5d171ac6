package policy

// filterRequirements reports requirements on labels that are not part of identities. No peer can be checked for such a label, so each requirement is a problem. The
// result is false if the rule must not be enforced.
//
// In an allow rule, a requirement for the label is never met. A requirement for its absence must not count as met, so the rule allows nothing. In a deny
// rule neither may narrow the peers, so the requirement is removed from the selector.
func (p *Policy) filterRequirements(path string, s *Selector, deny bool, env *Environment) bool {
	ok := true
	var kept []Requirement
	for i := range s.Requirements {
		r := &s.Requirements[i]
		if env.keeps(r) {
			kept = append(kept, *r)
			continue
		}
		what := "no peer has it, so this peer of the rule selects nothing"
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
