package metrics

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// counters reads the counters of the kernel.
type counters interface {
	// Read returns the datapath's counters that are not 0, summed over all CPUs.
	Read() ([]counted, error)
}

// guard reads the packets that the nftables rules have dropped since their installation.
type guard func() (nftguard.Dropped, error)

func newGuard() guard { return nftguard.ReadDropped }

// verdict identifies a counter of the datapath.
type verdict struct{ reason, direction string }

// counted is a counter with its values.
type counted struct {
	verdict
	packets, bytes uint64
}

// mapCounters reads the map "metrics".
type mapCounters struct{ pinned pinnedmaps.Maps }

func newCounters(pinned pinnedmaps.Maps) counters { return mapCounters{pinned} }

// Read implements counters.
func (m mapCounters) Read() ([]counted, error) {
	opened, err := m.pinned.Get("metrics")
	if errors.Is(err, pinnedmaps.ErrNotOpen) {
		return nil, nil // the map is open only between start and stop
	}
	if err != nil {
		return nil, err
	}
	return readCounters(opened)
}

// readCounters sums over CPUs, and over reason numbers with the same text: two samples with the same labels would make the whole scrape fail.
func readCounters(m *ebpf.Map) ([]counted, error) {
	var (
		slot   uint32
		perCPU []bpf.MetricsValue
		sums   = map[verdict]counted{}
	)
	slots := m.Iterate()
	for slots.Next(&slot, &perCPU) {
		v := verdictOf(slot)
		sum := sums[v]
		for _, one := range perCPU {
			sum.packets += one.Packets
			sum.bytes += one.Bytes
		}
		if sum.packets != 0 {
			sum.verdict = v
			sums[v] = sum
		}
	}
	if err := slots.Err(); err != nil {
		return nil, fmt.Errorf("read map metrics: %w", err)
	}
	return slices.Collect(maps.Values(sums)), nil
}

func verdictOf(slot uint32) verdict {
	reason, direction := bpf.MetricsReason(slot)
	words := [...]string{bpf.DirectionUnknown: "unknown", bpf.DirectionIngress: "ingress", bpf.DirectionEgress: "egress"}
	return verdict{events.Reason(reason).String(), words[direction]}
}
