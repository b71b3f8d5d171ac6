package ctgc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// signalPause is the pause after signals have been read: each dropped packet may send one.
	signalPause = 100 * time.Millisecond
	signalWait  = 10 * time.Second
	// signalBatch is the maximum number of signals that are read before the collector is woken and the pause begins. Without a limit, programs that send signals
	// faster than this reader would prevent both. It is the capacity of the ring buffer: 64 KiB, 16 bytes for each record with its header.
	signalBatch = 64 << 10 / 16
	minRetry    = 100 * time.Millisecond
	maxRetry    = 5 * time.Second // a job follows no tables while it waits for its retry
)

// signalOf decodes a record of the ring buffer.
func signalOf(record []byte) (s bpf.CtSignal, err error) {
	if n, err := binary.Decode(record, binary.NativeEndian, &s); err != nil || n != len(record) {
		return s, fmt.Errorf("read a signal of conntrack: %d bytes, want %d", len(record), binary.Size(s))
	}
	return s, nil
}

// signalState counts signals by map, and wakes the collector.
type signalState struct {
	wake chan struct{} // has a capacity of one

	mu       sync.Mutex // guards the counters
	maps     map[string]signalCounts
	rejected map[uint16]uint64 // number of denied translations by endpoint id; id 0: no endpoint of this node
}

// signalCounts are the counters of one map: signals of a full map, and of a used-up quota.
type signalCounts struct{ full, share uint64 }

// signalMap returns the map that a signal with this family refers to; empty for a family that no program sends.
func signalMap(family uint32) string {
	switch family {
	case 4:
		return bpf.MapCtEst4
	case 6:
		return bpf.MapCtEst6
	case 4 + bpf.NatSignal, 4 + bpf.NatShareSignal, 4 + bpf.NatWakeSignal:
		return bpf.MapNat4
	case 6 + bpf.NatSignal, 6 + bpf.NatShareSignal, 6 + bpf.NatWakeSignal:
		return bpf.MapNat6
	}
	return ""
}

// note counts a signal.
func (h *signalState) note(s bpf.CtSignal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.maps == nil {
		h.maps, h.rejected = make(map[string]signalCounts), make(map[uint16]uint64)
	}
	name := signalMap(s.Family)
	counts := h.maps[name]
	if s.Family > bpf.NatSignal && s.Family < bpf.NatWakeSignal {
		h.rejected[uint16(s.Endpoint)]++
	}
	switch {
	case s.Family > bpf.NatWakeSignal: // no flow was denied
	case s.Family > bpf.NatShareSignal:
		counts.share++
	case s.Family > bpf.NatSignal, s.Endpoint == 0:
		counts.full++
	default:
		counts.share++
	}
	h.maps[name] = counts
}

// counts returns the counters of a map.
func (h *signalState) counts(name string) signalCounts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.maps[name]
}

// rejections returns the number of denied translations by endpoint.
func (h *signalState) rejections() map[uint16]uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	rejected := make(map[uint16]uint64, len(h.rejected))
	maps.Copy(rejected, h.rejected)
	return rejected
}

// forget removes the counter of a removed endpoint, because another endpoint may get its id.
func (h *signalState) forget(endpoint uint16) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.rejected, endpoint)
}

// hurry wakes the collector. It does not block.
func (h *signalState) hurry() {
	select {
	case h.wake <- struct{}{}:
	default: // a wake-up is pending
	}
}

// receiveSignals waits for signals and wakes the collector.
func (a *access) receiveSignals(ctx context.Context, health cell.Health) error {
	ring, err := a.kernel.Signals()
	if err != nil {
		return err
	}
	defer ring.Close()
	stop := context.AfterFunc(ctx, func() { _ = ring.Close() }) // wakes the read
	defer stop()
	health.OK("waiting for signals")
	for {
		watchdog.IdleFor(ctx, signalWait)
		s, err := ring.Read(time.Now().Add(signalWait))
		watchdog.Busy(ctx)
		n := 0
		for ; err == nil; s, err = ring.Read(time.Unix(1, 0)) { // read pending records without waiting
			a.signals.note(s)
			if n++; n == signalBatch {
				break
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("read signals of conntrack: %w", err)
		}
		if n == 0 {
			continue
		}
		a.signals.hurry()
		if watchdog.Sleep(ctx, signalPause) != nil {
			return nil
		}
	}
}
