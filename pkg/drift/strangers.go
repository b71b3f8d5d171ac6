package drift

import (
	"context"
	"fmt"
	"time"

	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

// settle is how long an entry without a row may be one whose row has just been deleted.
const settle = time.Second

// Strangers deals with entries of a map of ours that no row wants. Those that are still there after a moment, in which a
// deletion that is under way ends, were put there by somebody else: each is counted, and prune is called to remove them.
func Strangers[K any](ctx context.Context, w Watch, mapName string, seen []K, still func(K) bool, prune func()) {
	if len(seen) == 0 {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-time.After(settle):
	}
	var findings []driftrepairs.Finding
	for _, key := range seen {
		if still(key) {
			findings = append(findings, driftrepairs.Finding{Kind: driftrepairs.MapEntry, What: mapName,
				Found: fmt.Sprintf("%v is nobody's", key)})
		}
	}
	if len(findings) > 0 {
		w.Repairs.Record(findings...)
		prune()
	}
}
