package servicestatus

import (
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// statement is the message about a Service. A Service whose annotations all have an effect has no row.
type statement struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	UID       string            `json:"uid"`
	Message   string            `json:"message"` // names each annotation without effect
	Status    reconciler.Status `json:"status"`
}

func (s *statement) clone() *statement { c := *s; return &c }

func (s *statement) withStatus(status reconciler.Status) *statement { s.Status = status; return s }

func (s *statement) key() string { return s.Namespace + "/" + s.Name }

// TableHeader implements statedb.TableWritable.
func (*statement) TableHeader() []string { return []string{"Service", "Message", "Status", "Error"} }

// TableRow implements statedb.TableWritable.
func (s *statement) TableRow() []string {
	fault := "-"
	if text := s.Status.GetError(); text != "" {
		fault = printable.Text(text)
	}
	return []string{printable.Text(s.key()), printable.Text(s.Message), s.Status.Kind.String(), fault}
}

var nameIndex = indexes.Unique("service", indexes.String, (*statement).key)

func newTable(db *statedb.DB) (statedb.RWTable[*statement], error) {
	return statedb.NewTable(db, "service-statements", nameIndex)
}
