// Package monitorwire is what goes over the monitor socket: a stream of gob values, one for each event of the datapath.
// The format is that of Cilium's socket monitor1_2.sock, so its tools can read it.
package monitorwire

import (
	"encoding/gob"
	"io"
)

// Types of a payload; the numbers are those of perf records.
const (
	TypeLost   = 2 // events were lost; Lost says how many
	TypeSample = 9 // Data is one event
)

// Payload is one value of the stream. The names of its fields are part of the format.
type Payload struct {
	Data []byte // an event as the program wrote it; package events decodes it
	CPU  int    // always 0: a ring buffer is shared by all CPUs
	Lost uint64
	Type int
}

// Decoder reads the stream.
type Decoder struct{ gob *gob.Decoder }

// NewDecoder reads from a connection to the socket. The server expects nothing from its client.
func NewDecoder(r io.Reader) *Decoder { return &Decoder{gob.NewDecoder(r)} }

// Next waits for the next payload; [io.EOF] when the agent stops.
func (d *Decoder) Next() (p Payload, err error) { return p, d.gob.Decode(&p) }

// Encoder writes the stream of one listener.
type Encoder struct{ gob *gob.Encoder }

// NewEncoder writes to one listener; the stream describes its own types, so each listener has an encoder of its own.
func NewEncoder(w io.Writer) *Encoder { return &Encoder{gob.NewEncoder(w)} }

// Put writes one payload.
func (e *Encoder) Put(p *Payload) error { return e.gob.Encode(p) }
