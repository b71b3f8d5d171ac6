// Package endpointstates holds the state, identity, health and recent history of each endpoint.
package endpointstates

import (
	"slices"
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// State of an endpoint; the words are Cilium's.
type State string

const (
	WaitingForIdentity  State = "waiting-for-identity"
	NotReady            State = "not-ready"
	WaitingToRegenerate State = "waiting-to-regenerate"
	Regenerating        State = "regenerating"
	Restoring           State = "restoring"
	Ready               State = "ready"
	Disconnecting       State = "disconnecting"
	Disconnected        State = "disconnected"
	Invalid             State = "invalid"
)

// LogEntry is one line of an endpoint's history.
type LogEntry struct {
	Time    time.Time `json:"time"`
	Failed  bool      `json:"failed,omitempty"`
	State   State     `json:"state"`
	Message string    `json:"message"`
}

// MaxLog limits the log entries of a row; the oldest are removed first.
const MaxLog = 64

// EndpointState has the id of the endpoint's row in endpoints.
type EndpointState struct {
	ID uint16 `json:"id"`
	// Attachment is "<container id>:<interface>". It distinguishes an endpoint from a later one with the same id.
	Attachment string `json:"attachment"`
	State      State  `json:"state"`
	Identity   uint32 `json:"identity"` // numeric security identity; 0 without one
	// Revision is the policy revision that the kernel enforces; 0 before the first.
	Revision uint64 `json:"revision"`
	// Error says why the endpoint is not ready and which step is retried; empty without an error.
	Error string `json:"error,omitempty"`
	// Waiting names the missing condition while the endpoint is neither ready nor in error; empty otherwise.
	Waiting string `json:"waiting,omitempty"`
	// Notice holds a remark on an endpoint that works, such as a provisional identity; empty otherwise.
	Notice string     `json:"notice,omitempty"`
	Log    []LogEntry `json:"log,omitempty"` // oldest first; never changed in place
}

// Clone returns a copy that may be changed and inserted.
func (s *EndpointState) Clone() *EndpointState { c := *s; return &c }

// Equal compares everything but the log.
func (s *EndpointState) Equal(o *EndpointState) bool {
	return s.ID == o.ID && s.Attachment == o.Attachment && s.State == o.State && s.Identity == o.Identity &&
		s.Revision == o.Revision && s.Error == o.Error && s.Waiting == o.Waiting && s.Notice == o.Notice
}

// WithLog returns a copy with one more log entry.
func (s *EndpointState) WithLog(e LogEntry) *EndpointState {
	c := s.Clone()
	keep := s.Log
	if len(keep) >= MaxLog {
		keep = keep[len(keep)-MaxLog+1:]
	}
	c.Log = append(slices.Clone(keep), e)
	return c
}

// TableHeader implements statedb.TableWritable.
func (*EndpointState) TableHeader() []string {
	return []string{"ID", "Identity", "Revision", "State", "Error"}
}

// TableRow implements statedb.TableWritable.
func (s *EndpointState) TableRow() []string {
	e := s.Error
	if e == "" {
		e = "-"
	}
	return []string{strconv.Itoa(int(s.ID)), strconv.FormatUint(uint64(s.Identity), 10),
		strconv.FormatUint(s.Revision, 10), string(s.State), e}
}

var idIndex = indexes.Unique("id", indexes.Uint16, func(s *EndpointState) uint16 { return s.ID })

// ByID finds the state of one endpoint.
var ByID = idIndex.Query

// NewTable makes the table "endpoint-states".
func NewTable(db *statedb.DB) (statedb.RWTable[*EndpointState], error) {
	return statedb.NewTable(db, "endpoint-states", idIndex)
}
