package policy

import (
	"strconv"

	"github.com/waggle-net/waggle/pkg/printable"
)

// maxQuotedBytes limits the text from an object that a message contains, in bytes.
const maxQuotedBytes = 80

// quote formats text from an object for a message.
func quote(text string) string { return strconv.Quote(printable.Short(text, maxQuotedBytes)) }

// maxProblems limits the reported problems of one policy. Rules fail closed even if their problem is not reported.
const maxProblems = 50

func (p *Policy) add(problem Problem) {
	if len(p.Problems) < maxProblems {
		p.Problems = append(p.Problems, problem)
	}
}

func (p *Policy) invalid(path, message string) {
	p.add(Problem{Path: path, Reason: ReasonInvalid, Message: message, Invalid: true})
}

// outcome describes the effect of a rule that cannot be enforced as written.
func outcome(deny bool) string {
	if deny {
		return "the rule denies all that it may mean"
	}
	return "the rule allows nothing"
}
