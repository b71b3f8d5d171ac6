package natmap

import (
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
)

// State of a pair in a word.
type State string

// States. Those that TCP alone has stand first.
const (
	Opening     State = "opening"     // one side has sent no more than its SYN
	Established State = "established" // data may flow
	Closing     State = "closing"     // one side will send no more
	Closed      State = "closed"      // neither side will
	Reset       State = "reset"       // one side broke the connection
	Alive       State = "alive"
	Expired     State = "expired" // as good as gone; the collector has not come by
)

// StateAt tells the state of a pair at a time of [bpf.CtNow]; twin is nil when it is missing.
func (f *Flow) StateAt(now uint32, twin *Flow) State {
	other := uint32(0)
	if twin != nil {
		other = twin.Flags
	}
	both, either := f.Flags&other, f.Flags|other
	switch {
	case f.Expired(now) && (twin == nil || twin.Expired(now)):
		return Expired
	case f.Key.Tuple().Protocol != unix.IPPROTO_TCP:
		return Alive
	case either&uint32(bpf.NatSenderReset) != 0:
		return Reset
	case both&uint32(bpf.NatSenderFin) != 0:
		return Closed
	case either&uint32(bpf.NatSenderFin) != 0:
		return Closing
	case both&uint32(bpf.NatSenderStands) == 0:
		return Opening
	}
	return Established
}

// Words are the flags that a state does not tell.
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

// Place is the name of a place; its number when it has none.
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
