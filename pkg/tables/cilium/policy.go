package cilium

import (
	"bytes"
	"encoding/json"
	"maps"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// Policy is a CiliumNetworkPolicy, or a CiliumClusterwideNetworkPolicy when Namespace is empty. Rules are kept as they
// are written; maps and slices are never changed in place.
type Policy struct {
	Namespace   string            `json:"namespace,omitempty"`
	Name        string            `json:"name"`
	UID         string            `json:"uid,omitempty"`
	Generation  int64             `json:"generation,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Spec        json.RawMessage   `json:"spec,omitempty"`  // one rule
	Specs       json.RawMessage   `json:"specs,omitempty"` // a list of rules
}

// Key is "namespace/name", or the name of a policy of the whole cluster.
func (p *Policy) Key() string {
	if p.Namespace == "" {
		return p.Name
	}
	return p.Namespace + "/" + p.Name
}

// Equal compares everything.
func (p *Policy) Equal(o *Policy) bool {
	return p.Namespace == o.Namespace && p.Name == o.Name && p.UID == o.UID && p.Generation == o.Generation &&
		maps.Equal(p.Annotations, o.Annotations) && bytes.Equal(p.Spec, o.Spec) && bytes.Equal(p.Specs, o.Specs)
}

// TableHeader implements statedb.TableWritable.
func (*Policy) TableHeader() []string { return []string{"Policy", "UID"} }

// TableRow implements statedb.TableWritable.
func (p *Policy) TableRow() []string { return []string{p.Key(), printable.Text(p.UID)} }

var policyIndex = indexes.Unique("name", indexes.String, (*Policy).Key)

// PolicyByName finds a row by [Policy.Key].
var PolicyByName = policyIndex.Query

// NewPolicyTable makes the table "cilium-networkpolicies", of policies of both scopes.
func NewPolicyTable(db *statedb.DB) (statedb.RWTable[*Policy], error) {
	return statedb.NewTable(db, "cilium-networkpolicies", policyIndex)
}
