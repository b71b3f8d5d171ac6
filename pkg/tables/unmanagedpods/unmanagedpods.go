// Package unmanagedpods lists pods of this node that run without an endpoint.
package unmanagedpods

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Pod is a pod whose network this agent did not create; no program sees its packets.
type Pod struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	UID       string       `json:"uid,omitempty"`
	PodIPs    []netip.Addr `json:"podIPs,omitempty"` // never changed in place
}

// Key is "namespace/name".
func (p *Pod) Key() string { return p.Namespace + "/" + p.Name }

// Equal compares everything.
func (p *Pod) Equal(o *Pod) bool {
	return p.Namespace == o.Namespace && p.Name == o.Name && p.UID == o.UID && slices.Equal(p.PodIPs, o.PodIPs)
}

// TableHeader implements statedb.TableWritable.
func (*Pod) TableHeader() []string { return []string{"Pod", "Addresses"} }

// TableRow implements statedb.TableWritable.
func (p *Pod) TableRow() []string {
	texts := make([]string, len(p.PodIPs))
	for i, a := range p.PodIPs {
		texts[i] = a.String()
	}
	return []string{p.Key(), strings.Join(texts, ",")}
}

var nameIndex = indexes.Unique("name", indexes.String, (*Pod).Key)

// NewTable makes the table "unmanaged-pods".
func NewTable(db *statedb.DB) (statedb.RWTable[*Pod], error) {
	return statedb.NewTable(db, "unmanaged-pods", nameIndex)
}
