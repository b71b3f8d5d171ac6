package policystatus

import (
	"reflect"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/ciliumv2"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// statement is the report on one policy object.
type statement struct {
	Ref     policy.Ref        `json:"ref"`
	UID     string            `json:"uid"`
	Valid   string            `json:"valid"` // "True" if the whole policy can be enforced, else "False"
	Reason  string            `json:"reason"`
	Message string            `json:"message"`
	Status  reconciler.Status `json:"status"`

	groups []policy.GroupChoice // to which the policy refers
	known  *policy.CIDRGroups   // the groups with which the policy was evaluated
}

// Values of the condition: valid if nodes can enforce the whole policy, and invalid if they do not enforce a part of it.
const (
	valid   = "True"
	invalid = "False"
)

func (s *statement) clone() *statement { c := *s; return &c }

func (s *statement) withStatus(status reconciler.Status) *statement { s.Status = status; return s }

// equal ignores the status.
func (s *statement) equal(o *statement) bool {
	return s.Ref == o.Ref && s.UID == o.UID && s.Valid == o.Valid && s.Reason == o.Reason && s.Message == o.Message && reflect.DeepEqual(s.groups, o.groups)
}

// said reports whether a condition equals the statement, apart from its time.
func (s *statement) said(c ciliumv2.PolicyCondition) bool {
	return c.Type == ciliumv2.PolicyValid && c.Status == s.Valid && c.Reason == s.Reason && c.Message == s.Message
}

// TableHeader implements statedb.TableWritable.
func (*statement) TableHeader() []string {
	return []string{"Policy", "Valid", "Reason", "Message", "Status", "Error"}
}

// TableRow implements statedb.TableWritable.
func (s *statement) TableRow() []string {
	fault := "-"
	if text := s.Status.GetError(); text != "" {
		fault = printable.Text(text)
	}
	return []string{printable.Text(s.Ref.String()), s.Valid, s.Reason, printable.Text(s.Message), s.Status.Kind.String(), fault}
}

var refIndex = statedb.Index[*statement, string]{
	Name:       "policy",
	FromObject: func(s *statement) index.KeySet { return index.NewKeySet(index.String(s.Ref.String())) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

var groupIndex = statedb.Index[*cilium.CIDRGroup, string]{
	Name:       "name",
	FromObject: func(g *cilium.CIDRGroup) index.KeySet { return index.NewKeySet(index.String(g.Name)) },
	FromKey:    index.String,
	FromString: index.FromString,
	Unique:     true,
}

// newGroupTable returns the table of the groups to which policies may refer.
func newGroupTable(db *statedb.DB) (statedb.RWTable[*cilium.CIDRGroup], error) {
	return statedb.NewTable(db, "policy-cidrgroups", groupIndex)
}

func newTable(db *statedb.DB) (statedb.RWTable[*statement], error) {
	return statedb.NewTable(db, "policy-statements", refIndex)
}
