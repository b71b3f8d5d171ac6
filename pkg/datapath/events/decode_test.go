package events_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// record builds a record in the layout of the programs.
type record []byte

func newRecord(n int) record { return make(record, n) }

func (r record) u8(at int, v uint8) record   { r[at] = v; return r }
func (r record) u16(at int, v uint16) record { binary.NativeEndian.PutUint16(r[at:], v); return r }
func (r record) u32(at int, v uint32) record { binary.NativeEndian.PutUint32(r[at:], v); return r }

func drop(packet []byte) record {
	r := newRecord(36).u8(0, 1).u8(1, 132).u16(2, 11).u32(4, 0xabcd).u32(8, 1500).u16(12, uint16(len(packet))).u16(14, 1).
		u32(16, 5).u32(20, 7).u32(24, 12).u16(28, 321).u8(30, 208).u8(31, 0xff).u32(32, 101)
	return append(r, packet...)
}

func TestDecode_Drop(t *testing.T) {
	t.Parallel()
	got, err := events.Decode(drop([]byte{1, 2, 3}))
	if err != nil {
		t.Fatal(err)
	}
	want := &events.Drop{
		Header: events.Header{Endpoint: 11, Hash: 0xabcd, Length: 1500, Packet: []byte{1, 2, 3}},
		Reason: events.SourceIP, SourceIdentity: 5, DestinationIdentity: 7, DestinationID: 12,
		File: events.FilePodEgress, Line: 321, ExtError: -1, IfIndex: 101,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if d := want.Direction(); d != "ingress" {
		t.Errorf("direction of a drop with a target: %s", d)
	}
}

func TestDecode_TraceVersions(t *testing.T) {
	t.Parallel()
	v6 := netip.MustParseAddr("fd00::7")
	base := func(n int, version uint16) record {
		return newRecord(n).u8(0, 4).u8(1, 3).u16(2, 11).u32(8, 90).u16(12, 2).u16(14, version).
			u32(16, 5).u32(20, 2).u16(24, 12).u8(26, 1).u32(28, 101)
	}
	want := events.Trace{
		Header: events.Header{Endpoint: 11, Length: 90, Packet: []byte{8, 9}},
		Point:  3, SourceIdentity: 5, DestinationIdentity: 2, DestinationID: 12, Reason: 1, IfIndex: 101,
	}
	wantV4, wantV6 := want, want
	wantV4.OriginalIP = netip.MustParseAddr("10.1.0.7")
	wantV6.OriginalIP, wantV6.Flags = v6, 1
	v6record := base(48, 1).u8(27, 1)
	copy(v6record[32:], v6.AsSlice())
	for name, c := range map[string]struct {
		in   record
		want events.Trace
	}{
		"version 0":                       {base(32, 0), want},
		"version 1 without translation":   {base(48, 1), want},
		"version 1, translated from IPv4": {base(48, 1).u8(32, 10).u8(33, 1).u8(35, 7), wantV4},
		"version 1, translated from IPv6": {v6record, wantV6},
	} {
		got, err := events.Decode(append(c.in, 8, 9))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(&c.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// verdict returns a denial of TCP port 8080 in egress, over IPv6.
func verdict(packet []byte) record {
	denied := int32(-133)
	r := newRecord(32).u8(0, 5).u16(2, 11).u32(4, 0xabcd).u32(8, 90).u16(12, uint16(len(packet))).u16(14, 1).
		u32(16, 300).u32(20, uint32(denied)).u16(24, 8080).u8(26, 6).u8(27, 2|1<<2|2<<3)
	return append(r, packet...)
}

func TestDecode_Verdict(t *testing.T) {
	t.Parallel()
	want := events.Verdict{
		Header:         events.Header{Endpoint: 11, Hash: 0xabcd, Length: 90, Packet: []byte{7}},
		RemoteIdentity: 300, Code: -133, DstPort: 8080, Protocol: 6, Egress: true, IPv6: true, Match: 2,
	}
	got, err := events.Decode(verdict([]byte{7}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Error(diff)
	}
	if want.Action() != "deny" || want.Reason() != events.PolicyDenied || want.Direction() != "egress" || want.Match.String() != "L3-L4" {
		t.Errorf("%s, %s, %s, %s", want.Action(), want.Reason(), want.Direction(), want.Match)
	}
	audited, err := events.Decode(verdict(nil).u32(20, 0).u8(27, 1|1<<6))
	if err != nil {
		t.Fatal(err)
	}
	if v := audited.(*events.Verdict); v.Action() != "audit" || v.Direction() != "ingress" || v.Reason() != events.Forwarded {
		t.Errorf("audited: %+v", v)
	}
}

// TestWire_Verdict: in the stream 8 zero bytes follow the header of a verdict; other records have the form of the ring buffer.
func TestWire_Verdict(t *testing.T) {
	t.Parallel()
	ring := verdict([]byte{7, 8})
	wire := events.Wire(ring)
	if want := slices.Concat(ring[:32], make([]byte, 8), []byte{7, 8}); !bytes.Equal(wire, want) {
		t.Errorf("got  %x\nwant %x", wire, want)
	}
	for _, r := range []record{drop([]byte{1}), newRecord(48).u8(0, 4).u16(14, 1), verdict(nil)[:31], {}} {
		if wire := events.Wire(r); !bytes.Equal(wire, r) {
			t.Errorf("got  %x\nwant %x", wire, []byte(r))
		}
	}
	for n := range wire {
		if _, err := events.DecodeWire(wire[:n]); !errors.Is(err, events.ErrShort) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
	}
}

// TestDecodeWire_PreviousAgent: an agent of the previous release sends verdicts in the form of the ring buffer, an agent of this release sends longer ones.
// DecodeWire reads both for any length of the packet.
func TestDecodeWire_PreviousAgent(t *testing.T) {
	t.Parallel()
	for n := range 129 {
		packet := bytes.Repeat([]byte{0xab}, n)
		ring := append(verdict(packet), make([]byte, 128-n)...)
		for name, sent := range map[string][]byte{"previous": ring, "this": events.Wire(ring)} {
			event, err := events.DecodeWire(sent)
			if err != nil {
				t.Fatalf("%s, %d bytes of a packet: %v", name, n, err)
			}
			if v := event.(*events.Verdict); !bytes.Equal(v.Packet, packet) || v.RemoteIdentity != 300 {
				t.Errorf("%s, %d bytes of a packet: %+v", name, n, v)
			}
		}
	}
}

func TestNote_SurvivesTheStream(t *testing.T) {
	t.Parallel()
	want := &events.Note{Header: events.Header{Endpoint: 7}, Drop: 3, Policy: "no rule \x1b allows it"}
	record, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := events.Decode(record)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for n := 1; n < len(record); n++ {
		if _, err := events.Decode(record[:n]); !errors.Is(err, events.ErrUnknown) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
	}
}

func TestDecode_Rejects(t *testing.T) {
	t.Parallel()
	for _, whole := range []record{drop([]byte{1, 2, 3}), verdict([]byte{1, 2, 3})} {
		for n := range whole {
			if _, err := events.Decode(whole[:n]); !errors.Is(err, events.ErrShort) {
				t.Fatalf("the first %d bytes: %v", n, err)
			}
		}
	}
	for name, r := range map[string]record{
		"other type":     newRecord(64).u8(0, 9),
		"newer drop":     newRecord(64).u8(0, 1).u16(14, 2),
		"newer trace":    newRecord(64).u8(0, 4).u16(14, 7),
		"newer verdict":  newRecord(64).u8(0, 5).u16(14, 2),
		"drop version 0": newRecord(64).u8(0, 1),
	} {
		if _, err := events.Decode(r); !errors.Is(err, events.ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(drop([]byte{1, 2, 3})))
	f.Add([]byte(newRecord(48).u8(0, 4).u16(14, 1)))
	f.Add([]byte(verdict([]byte{1})))
	note, err := (&events.Note{Drop: 1, Policy: "why"}).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(note)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		event, err := events.Decode(b)
		if (event == nil) == (err == nil) {
			t.Fatalf("event %v with error %v", event, err)
		}
		if len(events.Wire(b)) == 160 && len(b) != 160 {
			return // no program writes a verdict with the same length in the stream as a verdict of a previous agent
		}
		if streamed, again := events.DecodeWire(events.Wire(b)); !reflect.DeepEqual(event, streamed) || (err == nil) != (again == nil) {
			t.Fatalf("%+v (%v) is %+v (%v) in the stream", event, err, streamed, again)
		}
		if drop, ok := event.(*events.Drop); ok {
			if len(drop.Packet) > len(b)-36 || cap(drop.Packet) != len(drop.Packet) {
				t.Fatalf("the packet reaches beyond the record: %d of %d", len(drop.Packet), len(b))
			}
			_ = drop.Reason.String() + drop.File.String() + drop.Direction()
		}
		if v, ok := event.(*events.Verdict); ok {
			if v.Match.String() == "" || v.Code >= 0 && v.Reason() != events.Forwarded {
				t.Fatalf("%+v", v)
			}
		}
	})
}
