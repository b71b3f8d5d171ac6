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

// Entry is one prefix. There is one row for each pod of the cluster, so a row takes only 64 bytes. [NewEntry] creates rows.
type Entry struct {
	key      Key
	ipv4     bool
	Source   Source
	kind     reconciler.StatusKind
	Identity uint32 // 0: unknown, and the programs drop its packets
	node     unique.Handle[string]
	owner    unique.Handle[string]
	updated  int64 // ns since 1970; 0 for never
	id       uint64
	problem  *string
}

// NewEntry returns a row without a status.
func NewEntry(c Claim, owner string) *Entry {
	e := &Entry{key: KeyOf(c.Prefix), ipv4: c.Prefix.Addr().Is4(), Source: c.Source, Identity: c.Identity, owner: unique.Make(owner)}
	if c.Node != "" {
		e.node = unique.Make(c.Node)
	}
	return e
}

// Prefix returns the masked prefix. /32 and /128 are written to the hash map, others to the LPM map.
func (e *Entry) Prefix() netip.Prefix {
	addr := netip.AddrFrom16([16]byte(e.key[:16]))
	if e.ipv4 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, int(e.key[16]))
}

// Node returns the name of the other node that has the prefix; empty without one. The node id is looked up when the row is written.
func (e *Entry) Node() string { return textOf(e.node) }

// Owner returns the owner of the winning claim.
func (e *Entry) Owner() string { return textOf(e.owner) }

func textOf(h unique.Handle[string]) string {
	if h == (unique.Handle[string]{}) {
		return ""
	}
	return h.Value()
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

// Equal compares the desired part.
func (e *Entry) Equal(o *Entry) bool {
	return e.key == o.key && e.ipv4 == o.ipv4 && e.Identity == o.Identity && e.node == o.node && e.Source == o.Source && e.owner == o.owner
}

// GetStatus returns the status of the row.
func (e *Entry) GetStatus() reconciler.Status {
	s := reconciler.Status{Kind: e.kind, ID: e.id, Error: e.problem}
	if e.updated != 0 {
		s.UpdatedAt = time.Unix(0, e.updated)
	}
	return s
}

// WithStatus sets the status of a clone.
func (e *Entry) WithStatus(s reconciler.Status) *Entry {
	e.kind, e.id, e.problem, e.updated = s.Kind, s.ID, s.Error, 0
	if !s.UpdatedAt.IsZero() {
		e.updated = s.UpdatedAt.UnixNano()
	}
	return e
}
