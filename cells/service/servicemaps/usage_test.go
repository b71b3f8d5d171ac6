package servicemaps

import (
	"testing"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
)

// opened counts the write transactions of each table.
type opened struct {
	statedb.NopMetrics
	times map[string]int
}

// WriteTxnTotalAcquisition implements statedb.Metrics.
func (o *opened) WriteTxnTotalAcquisition(_ string, tables []string, _ time.Duration) {
	for _, table := range tables {
		o.times[table]++
	}
}

// TestAccount_WritesOnlyChanges: a pass that does not change the usage of the maps takes no lock. The checks of the model compare the numbers with the maps.
func TestAccount_WritesOnlyChanges(t *testing.T) {
	t.Parallel()
	s := newSlotted(t)
	entries := func() uint32 {
		s.account()
		for row := range s.Usage.All(s.DB.ReadTxn()) {
			if row.Map == bpf.MapServices {
				return row.Entries
			}
		}
		return 0
	}
	s.want(1, 1, 2)
	if got := entries(); got != 1 {
		t.Errorf("%d entries, want 1", got)
	}
	revision, times := s.Usage.Revision(s.DB.ReadTxn()), s.opened.times["service-map-usage"]
	s.pass(quarantine)
	if entries(); s.opened.times["service-map-usage"] != times || s.Usage.Revision(s.DB.ReadTxn()) != revision {
		t.Error("the same was written again")
	}
	s.want(2)
	if got := entries(); got != 2 {
		t.Errorf("%d entries, want 2", got)
	}
	if got := s.Usage.Revision(s.DB.ReadTxn()); got != revision+1 {
		t.Errorf("one number has changed, and %d rows were written", got-revision)
	}
}
