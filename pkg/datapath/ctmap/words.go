package ctmap

import (
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
)

// State is the name of the state of a flow.
type State string

// States of a flow. The first six are states of TCP only.
const (
	Opening     State = "opening"     // SYN without a reply
	Handshake   State = "handshake"   // reply seen, but the handshake is not complete
	Established State = "established" // data may flow
	Closing     State = "closing"     // one side has closed its direction
	Closed      State = "closed"      // both sides have closed their direction
	Reset       State = "reset"       // one side reset the connection
	Unanswered  State = "unanswered"
	Answered    State = "answered"
	Expired     State = "expired" // expired, but not yet collected
)

// StateAt returns the state at a time of [bpf.CtNow].
func (f *Flow) StateAt(now uint32) State {
	flags := f.Entry.Flags
	replied := f.Established || flags&bpf.CtReplied != 0
	switch {
	case bpf.CtExpired(&f.Entry, now):
		return Expired
	case f.protocol() != unix.IPPROTO_TCP && replied:
		return Answered
	case f.protocol() != unix.IPPROTO_TCP:
		return Unanswered
	case flags&(bpf.CtInitiatorReset|bpf.CtResponderReset) != 0:
		return Reset
	case flags&bpf.CtInitiatorFin != 0 && flags&bpf.CtResponderFin != 0:
		return Closed
	case flags&(bpf.CtInitiatorFin|bpf.CtResponderFin) != 0:
		return Closing
	case !replied:
		return Opening
	case flags&bpf.CtEstablished == 0:
		return Handshake
	}
	return Established
}

func (f *Flow) protocol() uint8 {
	if f.Key.IPv6 {
		return f.Key.V6.Protocol
	}
	return f.Key.V4.Protocol
}

// Age returns the time since the start of the flow at a time of [bpf.CtNow]. It is accurate to about a second.
func (f *Flow) Age(now uint32) time.Duration { return bpf.CtDuration(since(now, f.Entry.Created)) }

// Left returns the time until the flow expires without another packet; 0 when it has expired.
func (f *Flow) Left(now uint32) time.Duration { return bpf.CtDuration(since(f.Entry.Expires, now)) }

// since returns the ticks from one time to a later one; 0 when it is not later. The clock may have wrapped around.
func since(later, earlier uint32) uint32 {
	if d := int32(later - earlier); d > 0 {
		return uint32(d)
	}
	return 0
}

// Words returns the names of the flags that the state does not include.
func (f *Flow) Words() (words []string) {
	flags := uint32(f.Entry.Flags)
	for _, w := range []struct {
		flag uint32
		word string
	}{{uint32(bpf.CtViaStack), "via-stack"}, {uint32(bpf.CtAudited), "audited"}} {
		if flags&w.flag != 0 {
			words = append(words, w.word)
		}
	}
	return words
}

// Protocol returns the name of a protocol in capitals, or its number when the name is not known.
func Protocol(number uint8) string {
	names := map[uint8]string{unix.IPPROTO_TCP: "TCP", unix.IPPROTO_UDP: "UDP", unix.IPPROTO_UDPLITE: "UDPLITE",
		unix.IPPROTO_SCTP: "SCTP", unix.IPPROTO_ICMP: "ICMP", unix.IPPROTO_ICMPV6: "ICMPv6"}
	if name, found := names[number]; found {
		return name
	}
	return strconv.Itoa(int(number))
}
