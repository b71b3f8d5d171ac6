package policy

import "fmt"

// maxPortNames limits the names of ports in one policy. A name counts once for each rule that has it. A compiler looks up each of them for each identity of the
// cluster, so thousands of names take seconds and gigabytes of each node.
const maxPortNames = 1000

var errPortNames = fmt.Errorf("the rules of the policy name more than %d ports", maxPortNames)

// portNames counts the names of ports in the rules of a policy.
type portNames struct {
	ofRule map[string]struct{}
	count  int
}

// nextRule begins another rule.
func (n *portNames) nextRule() { n.ofRule = map[string]struct{}{} }

// add counts a name, unless it is empty, and reports whether the policy may have it.
func (n *portNames) add(name string) bool {
	if _, again := n.ofRule[name]; again || name == "" {
		return true
	}
	if n.count == maxPortNames {
		return false
	}
	n.count++
	n.ofRule[name] = struct{}{}
	return true
}
