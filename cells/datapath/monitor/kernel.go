package monitor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// source opens the stream of events.
type source interface {
	Open() (reader, error)
}

// reader reads the ring buffer. There must be only one.
type reader interface {
	// Read waits for the next record. It returns [os.ErrDeadlineExceeded] at the deadline and [os.ErrClosed] after Close. The record is valid until the next
	// call.
	Read(deadline time.Time) ([]byte, error)
	// Lost returns the number of events that did not fit into the ring buffer since the map was created.
	Lost() (uint64, error)
	Close() error
}

// ringBuffer is the real source.
type ringBuffer struct{ maps pinnedmaps.Maps }

func newSource(m pinnedmaps.Maps) source { return ringBuffer{m} }

// Open implements source.
func (r ringBuffer) Open() (reader, error) {
	events, err := r.maps.Get(bpf.MapEvents)
	if err != nil {
		return nil, err
	}
	lost, err := r.maps.Get(bpf.MapEventsLost)
	if err != nil {
		return nil, err
	}
	ring, err := ringbuf.NewReader(events)
	if err != nil {
		return nil, fmt.Errorf("open ring buffer %s: %w", bpf.MapEvents, err)
	}
	return &ringReader{ring: ring, lost: lost}, nil
}

// ringReader implements reader.
type ringReader struct {
	ring   *ringbuf.Reader
	record ringbuf.Record
	lost   *ebpf.Map
}

// Read implements reader.
func (r *ringReader) Read(deadline time.Time) ([]byte, error) {
	r.ring.SetDeadline(deadline)
	if err := r.ring.ReadInto(&r.record); err != nil {
		if errors.Is(err, ringbuf.ErrClosed) {
			return nil, os.ErrClosed
		}
		return nil, err
	}
	return r.record.RawSample, nil
}

// Lost implements reader.
func (r *ringReader) Lost() (total uint64, err error) {
	var perCPU []uint64
	if err := r.lost.Lookup(uint32(0), &perCPU); err != nil {
		return 0, fmt.Errorf("read map %s: %w", bpf.MapEventsLost, err)
	}
	for _, n := range perCPU {
		total += n
	}
	return total, nil
}

// Close implements reader.
func (r *ringReader) Close() error { return r.ring.Close() }
