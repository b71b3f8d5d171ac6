package policystatus

import (
	"cmp"
	"crypto/sha256"
	"reflect"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
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

	// services are the Services to which the policy refers by name or by labels, and namespaces are those in which it chooses Services by their labels. If there
	// are any, the following fields are set, and Valid is empty until the statement is made.
	services   []policy.ServiceName
	namespaces []string
	text       [sha256.Size]byte // digest of the object
	size       int               // bytes of the rules in the object
	meaning    [sha256.Size]byte // digest of the Services with which the policy was evaluated
	restated   time.Time         // when [serviceEvaluator] last evaluated it because a Service had changed; zero for never
}

// refersToServices reports whether the statement depends on Services.
func (s *statement) refersToServices() bool { return len(s.services)+len(s.namespaces) > 0 }

// Values of the condition: valid if nodes can enforce the whole policy, and invalid if they do not enforce a part of it.
const (
	valid   = "True"
	invalid = "False"
)

func (s *statement) clone() *statement { c := *s; return &c }

func (s *statement) withStatus(status reconciler.Status) *statement { s.Status = status; return s }

// equal ignores the status and the fields of policies that refer to Services.
func (s *statement) equal(o *statement) bool {
	return s.Ref == o.Ref && s.UID == o.UID && s.Valid == o.Valid && s.Reason == o.Reason && s.Message == o.Message && reflect.DeepEqual(s.groups, o.groups)
}

// covers reports whether both statements are about the same object with the same groups, and differ at most by Services, whose changes [serviceEvaluator] follows.
func (s *statement) covers(o *statement) bool {
	return s.refersToServices() && o.refersToServices() && s.UID == o.UID && s.text == o.text && (len(o.groups) == 0 || s.known == o.known)
}

// retract removes the statement, so that [serviceEvaluator] makes it.
func (s *statement) retract() {
	s.Valid, s.Reason, s.Message, s.Status = "", "", "", reconciler.StatusDone()
}

// inheritStatus sets the status of a statement that replaces another one. An equal statement has the status of the other one, unless its write has failed: the row
// changes, so the reconciler would drop the result of the next attempt. Any other statement is written if the previous one is not written yet: a write of the
// previous one may be in progress or be repeated, and overwrite the condition that the object has now.
func (s *statement) inheritStatus(old *statement) {
	switch {
	case s.equal(old) && old.Status.Kind != reconciler.StatusKindError:
		s.Status = old.Status
	case old.Status.Kind != reconciler.StatusKindDone:
		s.Status = reconciler.StatusPending()
	}
}

// matches reports whether a condition equals the statement, apart from its time.
func (s *statement) matches(c ciliumv2.PolicyCondition) bool {
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
	return []string{printable.Text(s.Ref.String()), cmp.Or(s.Valid, "-"), cmp.Or(s.Reason, "-"), printable.Text(s.Message), s.Status.Kind.String(), fault}
}

var refIndex = indexes.Unique("policy", indexes.String, func(s *statement) string { return s.Ref.String() })

// withoutStatement is the key, in the index by Services, of policies whose statement must be made. It is no name of a Service.
const withoutStatement = "-"

// byService finds policies by the Services to which they refer, "namespace/name", and by the namespaces in which they choose Services, "namespace/".
var byService = statedb.Index[*statement, string]{
	Name: "service",
	FromObject: func(s *statement) index.KeySet {
		var keys []index.Key
		for _, name := range s.services {
			keys = append(keys, index.String(name.String()))
		}
		for _, namespace := range s.namespaces {
			keys = append(keys, index.String(namespace+"/"))
		}
		if s.Valid == "" {
			keys = append(keys, index.String(withoutStatement))
		}
		return index.NewKeySet(keys...)
	},
	FromKey:    index.String,
	FromString: index.FromString,
}

var groupIndex = indexes.Unique("name", indexes.String, func(g *cilium.CIDRGroup) string { return g.Name })

// newGroupTable returns the table of the groups to which policies may refer.
func newGroupTable(db *statedb.DB) (statedb.RWTable[*cilium.CIDRGroup], error) {
	return statedb.NewTable(db, "policy-cidrgroups", groupIndex)
}

var serviceIndex = indexes.Unique("name", indexes.String, (*k8s.Service).Key)

// newServiceTable returns the table of the Services to which policies may refer. Its rows have only the type, the selector and the labels.
func newServiceTable(db *statedb.DB) (statedb.RWTable[*k8s.Service], error) {
	return statedb.NewTable(db, "policy-services", serviceIndex)
}

func newTable(db *statedb.DB) (statedb.RWTable[*statement], error) {
	return statedb.NewTable(db, "policy-statements", refIndex, byService)
}
