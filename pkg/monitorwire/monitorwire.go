// Package monitorwire implements the protocol of the monitor socket: a stream of gob values, one for each event of the datapath.
// The protocol is that of Cilium's socket monitor1_2.sock, so its tools can read the stream.
package monitorwire

import (
	"encoding/gob"
	"io"
)

// Types of a payload, with the numbers of perf records.
const (
	TypeLost   = 2 // Lost is the number of lost events
	TypeSample = 9 // Data is one event
)

// Payload is one value of the stream. The names of its fields are part of the format.
type Payload struct {
	Data []byte // a record of the stream; package events decodes it with DecodeWire
	CPU  int    // always 0: a ring buffer is shared by all CPUs
	Lost uint64
	Type int
}

// Decoder reads the stream.
type Decoder struct{ gob *gob.Decoder }

// NewDecoder returns a decoder that reads from a connection to the socket. The client must not send data.
func NewDecoder(r io.Reader) *Decoder { return &Decoder{gob.NewDecoder(r)} }

// Next waits for the next payload. The error is [io.EOF] when the agent stops.
func (d *Decoder) Next() (p Payload, err error) { return p, d.gob.Decode(&p) }

// Encoder writes the stream to one client.
type Encoder struct{ gob *gob.Encoder }

// NewEncoder returns an encoder for one client. A stream begins with descriptions of its types, so each client needs its own encoder.
func NewEncoder(w io.Writer) *Encoder { return &Encoder{gob.NewEncoder(w)} }

// Put writes one payload.
func (e *Encoder) Put(p *Payload) error { return e.gob.Encode(p) }
