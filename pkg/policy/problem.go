package policy

import (
	"strconv"

	"github.com/waggle-net/waggle/pkg/printable"
)

// maxQuoted is how much of what somebody wrote a message repeats, in bytes.
const maxQuoted = 80

// quote repeats what somebody wrote.
func quote(text string) string { return strconv.Quote(printable.Short(text, maxQuoted)) }

// maxProblems bounds what is said of one policy. Its rules fail closed whether or not all are named.
const maxProblems = 50

func (p *Policy) add(problem Problem) {
	if len(p.Problems) < maxProblems {
		p.Problems = append(p.Problems, problem)
	}
}

func (p *Policy) invalid(path, message string) {
	p.add(Problem{Path: path, Reason: ReasonInvalid, Message: message, Invalid: true})
}

// outcome says what becomes of a rule that cannot be enforced as it is written.
func outcome(deny bool) string {
	if deny {
		return "the rule denies all that it may mean"
	}
	return "the rule allows nothing"
}
