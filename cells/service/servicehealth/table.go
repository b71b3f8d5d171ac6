package servicehealth

import (
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// port is a port on which this node answers health checks.
type port struct {
	Number  uint16            `json:"number"`
	Service string            `json:"service"` // of the responses, "namespace/name"
	Status  reconciler.Status `json:"status"`
}

func (p *port) clone() *port { c := *p; return &c }

func (p *port) withStatus(s reconciler.Status) *port { p.Status = s; return p }

func (p *port) status() reconciler.Status { return p.Status }

// TableHeader implements statedb.TableWritable.
func (*port) TableHeader() []string { return []string{"Port", "Service", "Status", "Error"} }

// TableRow implements statedb.TableWritable.
func (p *port) TableRow() []string {
	fault := "-"
	if text := p.Status.GetError(); text != "" {
		fault = printable.Text(text)
	}
	return []string{strconv.Itoa(int(p.Number)), printable.Text(p.Service), p.Status.Kind.String(), fault}
}

var numberIndex = indexes.Unique("port", indexes.Uint16, func(p *port) uint16 { return p.Number })

var byNumber = numberIndex.Query

func newTable(db *statedb.DB) (statedb.RWTable[*port], error) {
	return statedb.NewTable(db, "health-check-ports", numberIndex)
}
