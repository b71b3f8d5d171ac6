package natmap

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
)

// State is the name of the state of a pair.
type State string

// States of a pair. The first five are states of TCP only.
const (
	Opening     State = "opening"     // one side has sent only its SYN
	Established State = "established" // data may flow
	Closing     State = "closing"     // one side has closed its direction
	Closed      State = "closed"      // both sides have closed their direction
	Reset       State = "reset"       // one side reset the connection
	Alive       State = "alive"
	Expired     State = "expired" // expired, but not yet collected
)

// StateAt returns the state of a pair at a time of [bpf.CtNow]; reverse is nil when the reverse entry is missing.
func (f *Flow) StateAt(now uint32, reverse *Flow) State {
	other := uint32(0)
	if reverse != nil {
		other = reverse.Flags
	}
	both, either := f.Flags&other, f.Flags|other
	switch {
	case f.Expired(now) && (reverse == nil || reverse.Expired(now)):
		return Expired
	case f.Key.Tuple().Protocol != unix.IPPROTO_TCP:
		return Alive
	case either&uint32(bpf.NatSenderReset) != 0:
		return Reset
	case both&uint32(bpf.NatSenderFin) != 0:
		return Closed
	case either&uint32(bpf.NatSenderFin) != 0:
		return Closing
	case both&uint32(bpf.NatSenderEstablished) == 0:
		return Opening
	}
	return Established
}

// Words returns the names of the flags that the state does not include.
func (f *Flow) Words() (words []string) {
	for _, w := range []struct {
		flag uint32
		word string
	}{{uint32(bpf.NatService), "service"}, {uint32(bpf.NatMasquerade), "masquerade"}, {uint32(bpf.NatNode), "node"},
		{uint32(bpf.NatReply), "reply"}, {uint32(bpf.NatRedirect), "redirect"}, {uint32(bpf.NatDirect), "direct"}} {
		if f.Flags&w.flag != 0 {
			words = append(words, w.word)
		}
	}
	return words
}

// Place returns the name of a place, or its number when it has none.
func Place(p bpf.NatPlace) string {
	switch p {
	case bpf.NatFromPod:
		return "from-pod"
	case bpf.NatToPod:
		return "to-pod"
	case bpf.NatFromOutside:
		return "from-outside"
	case bpf.NatToOutside:
		return "to-outside"
	}
	return strconv.Itoa(int(p))
}
