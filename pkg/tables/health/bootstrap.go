package health

import (
	"cmp"
	"strconv"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Hook is a start hook that has run.
type Hook struct {
	Order    int           `json:"order"`            // 1 for the first hook
	Hook     string        `json:"hook"`             // function, as hive names it, with its source position
	Detail   string        `json:"detail,omitempty"` // name of the job, when the hook starts one
	Module   string        `json:"module"`           // full module id; empty for hooks of no module
	Start    time.Time     `json:"start"`            // start time
	Duration time.Duration `json:"duration"`         // nanoseconds it ran
}

// TableHeader implements statedb.TableWritable.
func (Hook) TableHeader() []string {
	return []string{"Order", "Module", "Hook", "Detail", "Start", "Duration"}
}

// TableRow implements statedb.TableWritable.
func (h Hook) TableRow() []string {
	return []string{strconv.Itoa(h.Order), cmp.Or(h.Module, "-"), h.Hook, cmp.Or(h.Detail, "-"), h.Start.UTC().Format(time.RFC3339Nano),
		h.Duration.String()}
}

var orderIndex = indexes.Unique("order", indexes.Int, func(h Hook) int { return h.Order })
var moduleIndex = indexes.Shared("module", indexes.String, func(h Hook) string { return h.Module })

// NewBootstrapTable makes the table "bootstrap".
func NewBootstrapTable(db *statedb.DB) (statedb.RWTable[Hook], error) {
	return statedb.NewTable(db, "bootstrap", orderIndex, moduleIndex)
}
