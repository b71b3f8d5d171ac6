// Package policies holds the parsed network policies that this node knows.
package policies

import (
	"reflect"
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Policy is one policy object. It is never changed in place.
type Policy struct {
	*policy.Policy
	Subjects int `json:"subjects"` // number of endpoints of this node that the policy selects
}

// Equal compares everything. It uses reflection, because policies nest deeply and change rarely.
func (p *Policy) Equal(o *Policy) bool { return reflect.DeepEqual(p, o) }

// TableHeader implements statedb.TableWritable.
func (*Policy) TableHeader() []string {
	return []string{"Policy", "Rules", "Subjects", "Mode", "NotEnforced"}
}

// TableRow implements statedb.TableWritable.
func (p *Policy) TableRow() []string {
	rules, mode := 0, "enforce"
	for _, part := range p.Parts {
		rules += len(part.Rules)
	}
	if p.Audit {
		mode = "audit"
	}
	return []string{printable.Text(p.Ref.String()), strconv.Itoa(rules), strconv.Itoa(p.Subjects), mode,
		strconv.Itoa(len(p.Problems))}
}

var refIndex = indexes.Unique("policy", indexes.String, func(p *Policy) string { return p.Ref.String() })

// ByRef finds a policy by [policy.Ref.String].
var ByRef = refIndex.Query

// NewTable makes the table "policies".
func NewTable(db *statedb.DB) (statedb.RWTable[*Policy], error) {
	return statedb.NewTable(db, "policies", refIndex)
}
