// Package ipcache holds which security identity stands behind which prefix.
package ipcache

import (
	"net/netip"

	"github.com/cilium/statedb/reconciler"
)

// Source ranks claims to the same prefix; a higher one wins.
type Source uint8

const (
	SourceGenerated Source = 1 // derived: the world
	SourceRemote    Source = 2 // pods elsewhere, from their CiliumEndpoints
	SourceNode      Source = 3 // nodes, and the API server
	SourceLocal     Source = 4 // endpoints and addresses of this node
)

// String names the source; where Cilium has the same, as it does.
func (s Source) String() string {
	switch s {
	case SourceGenerated:
		return "generated"
	case SourceRemote:
		return "custom-resource"
	case SourceNode:
		return "node"
	case SourceLocal:
		return "local"
	}
	return "unspec"
}

// Entry is one prefix.
type Entry struct {
	Prefix   netip.Prefix      `json:"prefix"`         // masked; /32 and /128 go to the hash, others to the LPM map
	Identity uint32            `json:"identity"`       // 0: it is not known yet, and the programs drop
	Node     string            `json:"node,omitempty"` // the other node that has it; empty when none has it. Its id is looked up when the row is written
	Source   Source            `json:"source"`
	Owner    string            `json:"owner"` // who contributed the row
	Status   reconciler.Status `json:"status"`
}

// Clone returns a copy that may be changed and inserted.
func (e *Entry) Clone() *Entry { c := *e; return &c }

// Equal compares the desired part.
func (e *Entry) Equal(o *Entry) bool {
	return e.Prefix == o.Prefix && e.Identity == o.Identity && e.Node == o.Node && e.Source == o.Source && e.Owner == o.Owner
}

// GetStatus returns the status of the row.
func (e *Entry) GetStatus() reconciler.Status { return e.Status }

// WithStatus sets the status of a clone.
func (e *Entry) WithStatus(s reconciler.Status) *Entry { e.Status = s; return e }
