// Package ipcache holds the security identity of each prefix.
package ipcache

import (
	"encoding/json"
	"net/netip"
	"time"
	"unique"

	"github.com/cilium/statedb/reconciler"
)

// Source ranks claims to the same prefix; the higher one wins.
type Source uint8

const (
	SourceGenerated Source = 1 // derived: the world
	SourceRemote    Source = 2 // pods of other nodes, from their CiliumEndpoints
	SourceNode      Source = 3 // nodes, and the API server
	SourceLocal     Source = 4 // endpoints and addresses of this node
)

// String returns the name of the source, the same as in Cilium if Cilium has it.
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

// Entry is one prefix. There is one row for each pod of the cluster, so a row takes only 48 bytes and its key. [NewEntry] creates rows.
type Entry struct {
	key      Key // all rows of a prefix share it with the tree of the table
	Source   Source
	kind     reconciler.StatusKind
	Identity uint32 // 0: unknown, and the programs drop its packets
	shared   unique.Handle[shared]
	updated  int64 // ns since 1970; 0 for never
	id       uint64
}

// shared holds the values that are the same for all pods of a node.
type shared struct {
	node, owner string
	failed      bool // the last write of the row failed, with problem
	problem     string
}

// NewEntry returns a row without a status.
func NewEntry(c Claim, owner string) *Entry {
	return &Entry{key: KeyOf(c.Prefix), Source: c.Source, Identity: c.Identity, shared: unique.Make(shared{node: c.Node, owner: owner})}
}

// Prefix returns the masked prefix. /32 and /128 are written to the hash map, others to the LPM map.
func (e *Entry) Prefix() netip.Prefix { return e.key.prefix() }

// Node returns the name of the other node that has the prefix; empty without one. The node id is looked up when the row is written.
func (e *Entry) Node() string { return e.sharing().node }

// Owner returns the owner of the winning claim.
func (e *Entry) Owner() string { return e.sharing().owner }

func (e *Entry) sharing() (s shared) {
	if e.shared != (unique.Handle[shared]{}) {
		s = e.shared.Value()
	}
	return s
}

// Key returns the key of the row.
func (e *Entry) Key() Key { return e.key }

// shown is a row in JSON and YAML.
type shown struct {
	Prefix   netip.Prefix      `json:"prefix"`
	Identity uint32            `json:"identity"`
	Node     string            `json:"node,omitempty"`
	Source   Source            `json:"source"`
	Owner    string            `json:"owner"`
	Status   reconciler.Status `json:"status"`
}

func (e *Entry) show() shown {
	return shown{e.Prefix(), e.Identity, e.Node(), e.Source, e.Owner(), e.GetStatus()}
}

func (e *Entry) read(decode func(any) error) error {
	var s shown
	if err := decode(&s); err != nil {
		return err
	}
	*e = *NewEntry(Claim{s.Prefix, s.Identity, s.Node, s.Source}, s.Owner).WithStatus(s.Status)
	return nil
}

// MarshalJSON implements json.Marshaler.
func (e *Entry) MarshalJSON() ([]byte, error) { return json.Marshal(e.show()) }

// UnmarshalJSON implements json.Unmarshaler.
func (e *Entry) UnmarshalJSON(text []byte) error {
	return e.read(func(s any) error { return json.Unmarshal(text, s) })
}

// MarshalYAML implements yaml.Marshaler.
func (e *Entry) MarshalYAML() (any, error) { return e.show(), nil }

// UnmarshalYAML implements the interface of YAML decoders.
func (e *Entry) UnmarshalYAML(decode func(any) error) error { return e.read(decode) }

// Clone returns a copy that may be changed and inserted.
func (e *Entry) Clone() *Entry { c := *e; return &c }

// Replaces makes e share the key of the row that it replaces, which has the same prefix: the tree of the table keeps the key of the first row of a prefix.
func (e *Entry) Replaces(old *Entry) {
	if e.key == old.key {
		e.key = old.key
	}
}

// Equal compares the desired part.
func (e *Entry) Equal(o *Entry) bool {
	return e.key == o.key && e.Identity == o.Identity && e.Source == o.Source && (e.shared == o.shared || e.Node() == o.Node() && e.Owner() == o.Owner())
}

// GetStatus returns the status of the row.
func (e *Entry) GetStatus() reconciler.Status {
	s := reconciler.Status{Kind: e.kind, ID: e.id}
	if with := e.sharing(); with.failed {
		problem := with.problem
		s.Error = &problem
	}
	if e.updated != 0 {
		s.UpdatedAt = time.Unix(0, e.updated)
	}
	return s
}

// WithStatus sets the status of a clone.
func (e *Entry) WithStatus(s reconciler.Status) *Entry {
	e.kind, e.id, e.updated = s.Kind, s.ID, 0
	if !s.UpdatedAt.IsZero() {
		e.updated = s.UpdatedAt.UnixNano()
	}
	with := e.sharing()
	if s.Error == nil && !with.failed {
		return e
	}
	if with.failed, with.problem = s.Error != nil, ""; with.failed {
		with.problem = *s.Error
	}
	e.shared = unique.Make(with)
	return e
}
