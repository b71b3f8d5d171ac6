package drift

import (
	"context"
	"fmt"
	"time"

	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
)

// settle is how long an entry without a row may belong to a row that was just deleted.
const settle = time.Second

// PruneUnowned handles entries without a row in a map of Waggle. It waits until pending deletions have ended. Another process wrote the entries that remain:
// PruneUnowned counts each one and calls prune to remove them.
func PruneUnowned[K any](ctx context.Context, w Watch, mapName string, seen []K, still func(K) bool, prune func()) {
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
				Found: fmt.Sprintf("%v has no owner", key)})
		}
	}
	if len(findings) > 0 {
		w.Repairs.Record(findings...)
		prune()
	}
}
