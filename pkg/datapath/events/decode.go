package events

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Types of records, in their first byte.
const (
	TypeDrop    uint8 = 1
	TypeTrace   uint8 = 4
	TypeVerdict uint8 = 5
)

// Versions of layouts, in the header.
const (
	versionDrop    = 1
	versionVerdict = 1
	versionTraceV0 = 0
	versionTraceV1 = 1
)

const (
	headerLen  = 16 // of all records with a packet
	dropLen    = 36
	verdictLen = 32
	wireLen    = 40               // of a verdict in the stream: a cookie and padding, both 0, follow the header of the program
	verdictMax = verdictLen + 128 // of every verdict of a program: EVENT_CAPTURE_MAX bytes follow the header, for any length of the packet
	traceV0Len = 32
	traceV1Len = 48

	traceFlagIPv6 = 1
)

// Errors of [Decode].
var (
	ErrShort   = errors.New("record ends early")
	ErrUnknown = errors.New("unknown record")
)

// Header is the common part of every record with a packet.
type Header struct {
	Endpoint uint16 // local id of the endpoint at whose link the event occurred; 0 when unknown
	Hash     uint32 // hash of the flow
	Length   uint32 // length of the whole packet
	Packet   []byte // first bytes of the packet, from the Ethernet header on; shares memory with the record
}

// Direction returns the direction of the packet as the pod sees it: "ingress" when the record has a target endpoint, otherwise "egress".
func (d *Drop) Direction() string {
	if d.DestinationID != 0 {
		return "ingress"
	}
	return "egress"
}

// Event is a [Drop], a [Trace], a [Verdict] or a [Note].
type Event interface{ header() Header }

func (h Header) header() Header { return h }

// Drop reports a dropped packet.
type Drop struct {
	Header
	Reason              Reason
	SourceIdentity      uint32 // identities; 0 when the program did not know them yet
	DestinationIdentity uint32
	DestinationID       uint32 // destination endpoint; 0 for a packet from a pod
	File                File
	Line                uint16
	ExtError            int8
	IfIndex             uint32
}

// Trace reports a packet at an observation point.
type Trace struct {
	Header
	Point               uint8
	SourceIdentity      uint32
	DestinationIdentity uint32
	DestinationID       uint16
	Reason              uint8
	Flags               uint8
	IfIndex             uint32
	OriginalIP          netip.Addr // source before translation; invalid when the record has none
}

// Decode decodes one record of the ring buffer. It ignores bytes after the captured packet.
func Decode(record []byte) (Event, error) { return decode(record, verdictLen) }

// DecodeWire decodes one record of the monitor's stream. Agents of the previous release send verdicts in the form of the ring buffer; it recognizes them by
// their constant length.
func DecodeWire(data []byte) (Event, error) {
	if len(data) == verdictMax {
		return decode(data, verdictLen)
	}
	return decode(data, wireLen)
}

// Wire returns the record of the stream for a record of the ring buffer, as a copy. The newest tools of Cilium expect policy
// verdicts with a header of 40 bytes.
func Wire(record []byte) []byte {
	if len(record) < verdictLen || record[0] != TypeVerdict {
		return bytes.Clone(record)
	}
	return slices.Concat(record[:verdictLen], make([]byte, wireLen-verdictLen), record[verdictLen:])
}

func decode(record []byte, verdict int) (Event, error) {
	if len(record) > 0 && record[0] == TypeAgent {
		return decodeNote(record)
	}
	if len(record) < headerLen {
		return nil, fmt.Errorf("decode event of %d bytes: %w", len(record), ErrShort)
	}
	version := binary.NativeEndian.Uint16(record[14:])
	switch kind := record[0]; {
	case kind == TypeDrop && version == versionDrop:
		return decodeDrop(record)
	case kind == TypeTrace && version == versionTraceV0:
		return decodeTrace(record, traceV0Len)
	case kind == TypeTrace && version == versionTraceV1:
		return decodeTrace(record, traceV1Len)
	case kind == TypeVerdict && version == versionVerdict:
		return decodeVerdict(record, verdict)
	default:
		return nil, fmt.Errorf("decode event of type %d, version %d: %w", kind, version, ErrUnknown)
	}
}

func decodeDrop(b []byte) (Event, error) {
	header, err := decodeHeader(b, dropLen)
	if err != nil {
		return nil, err
	}
	return &Drop{
		Header:              header,
		Reason:              Reason(b[1]),
		SourceIdentity:      binary.NativeEndian.Uint32(b[16:]),
		DestinationIdentity: binary.NativeEndian.Uint32(b[20:]),
		DestinationID:       binary.NativeEndian.Uint32(b[24:]),
		Line:                binary.NativeEndian.Uint16(b[28:]),
		File:                File(b[30]),
		ExtError:            int8(b[31]),
		IfIndex:             binary.NativeEndian.Uint32(b[32:]),
	}, nil
}

func decodeTrace(b []byte, length int) (Event, error) {
	header, err := decodeHeader(b, length)
	if err != nil {
		return nil, err
	}
	trace := &Trace{
		Header:              header,
		Point:               b[1],
		SourceIdentity:      binary.NativeEndian.Uint32(b[16:]),
		DestinationIdentity: binary.NativeEndian.Uint32(b[20:]),
		DestinationID:       binary.NativeEndian.Uint16(b[24:]),
		Reason:              b[26],
		Flags:               b[27],
		IfIndex:             binary.NativeEndian.Uint32(b[28:]),
	}
	if length == traceV1Len {
		trace.OriginalIP = originalIP([16]byte(b[32:48]), trace.Flags&traceFlagIPv6 != 0)
	}
	return trace, nil
}

// decodeHeader reads the common part, and the packet after length bytes. The caller must check that the common part is complete.
func decodeHeader(b []byte, length int) (Header, error) {
	captured := int(binary.NativeEndian.Uint16(b[12:]))
	if len(b) < length+captured {
		return Header{}, fmt.Errorf("decode event of %d bytes: %w, want %d", len(b), ErrShort, length+captured)
	}
	return Header{
		Endpoint: binary.NativeEndian.Uint16(b[2:]),
		Hash:     binary.NativeEndian.Uint32(b[4:]),
		Length:   binary.NativeEndian.Uint32(b[8:]),
		Packet:   b[length : length+captured : length+captured],
	}, nil
}

// originalIP reads an address. The record holds the family elsewhere; all zeros mean that there is no address.
func originalIP(b [16]byte, ipv6 bool) netip.Addr {
	switch {
	case b == [16]byte{}:
		return netip.Addr{}
	case ipv6:
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[:4]))
}
