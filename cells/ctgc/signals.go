package ctgc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/heartbeat"
)

const (
	// signalPause is how long signals are left in the ring buffer once some have come: each refused packet may send one.
	signalPause = 100 * time.Millisecond
	signalWait  = 10 * time.Second
	minRetry    = 100 * time.Millisecond
	maxRetry    = time.Minute
)

// signalOf reads a record of the ring buffer.
func signalOf(record []byte) (s bpf.CtSignal, err error) {
	if n, err := binary.Decode(record, binary.NativeEndian, &s); err != nil || n != len(record) {
		return s, fmt.Errorf("read a signal of conntrack: %d bytes, want %d", len(record), binary.Size(s))
	}
	return s, nil
}

// heard counts signals by the map that they are about.
type heard struct {
	wake chan struct{} // has room for one

	mu    sync.Mutex // guards the counters
	full  [2]uint64  // IPv4, IPv6
	share [2]uint64
}

// note counts one.
func (h *heard) note(s bpf.CtSignal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	family := 0
	if s.Family == 6 {
		family = 1
	}
	if s.Endpoint == 0 {
		h.full[family]++
		return
	}
	h.share[family]++
}

func (h *heard) counts(ipv6 bool) (full, share uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ipv6 {
		return h.full[1], h.share[1]
	}
	return h.full[0], h.share[0]
}

// hurry wakes the collector, which looks at the counters itself.
func (h *heard) hurry() {
	select {
	case h.wake <- struct{}{}:
	default: // it is awake
	}
}

// hear waits for signals and wakes the collector.
func (c *collector) hear(ctx context.Context, health cell.Health) error {
	ring, err := c.kernel.Signals()
	if err != nil {
		return err
	}
	defer ring.Close()
	stop := context.AfterFunc(ctx, func() { _ = ring.Close() }) // wakes the read
	defer stop()
	health.OK("Waiting for signals")
	for {
		heartbeat.IdleFor(ctx, signalWait)
		s, err := ring.Read(time.Now().Add(signalWait))
		heartbeat.Busy(ctx)
		some := false
		for ; err == nil; s, err = ring.Read(time.Unix(1, 0)) { // what is there, without a wait
			c.heard.note(s)
			some = true
		}
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("read signals of conntrack: %w", err)
		}
		if !some {
			continue
		}
		c.heard.hurry()
		if heartbeat.Sleep(ctx, signalPause) != nil {
			return nil
		}
	}
}
