package icmpecho

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"
)

// replyTo converts a request into its reply.
func replyTo(s *echoSocket, request []byte) []byte {
	m := append([]byte(nil), request...)
	m[0] = echoReply4
	if s.ipv6 {
		m[0] = echoReply6
	}
	return m
}

// A reply counts only for its own request.
func TestEchoSocket_ForeignReplies(t *testing.T) {
	t.Parallel()
	for name, to := range map[string]netip.Addr{"IPv4": netip.MustParseAddr("192.0.2.2"), "IPv6": netip.MustParseAddr("2001:db8::2")} {
		s := &echoSocket{ipv6: to.Is6(), id: 7, next: 0xfffe, waiting: map[uint16]*echoWait{}}
		other := netip.MustParseAddr("192.0.2.3")
		_, older := s.add(Request{To: other})
		sequence, w := s.add(Request{To: to, Size: 1201})
		good := replyTo(s, s.request(sequence, w))
		change := func(change func(m []byte)) []byte {
			m := append([]byte(nil), good...)
			change(m)
			return m
		}
		at := time.Unix(1, 0)
		for what, m := range map[string][]byte{
			"a request":                 s.request(sequence, w),
			"of another identifier":     change(func(m []byte) { m[5]++ }),
			"of another request":        change(func(m []byte) { binary.BigEndian.PutUint16(m[6:], sequence-1) }),
			"of an unused number":       change(func(m []byte) { binary.BigEndian.PutUint16(m[6:], sequence+1) }),
			"with other data":           change(func(m []byte) { m[echoHeader]++ }),
			"with an odd code":          change(func(m []byte) { m[1] = 1 }),
			"longer":                    append(change(func([]byte) {}), 0),
			"shorter":                   good[:len(good)-1],
			"of nothing":                {},
			"of the kernel's complaint": change(func(m []byte) { m[0] = 3 }),
		} {
			if s.deliver(m, to, at); len(w.reply) > 0 || len(older.reply) > 0 {
				t.Fatalf("%s: a message %s counts", name, what)
			}
		}
		if s.deliver(good, other, at); len(w.reply) > 0 {
			t.Errorf("%s: the reply of another host counts", name)
		}
		s.deliver(good, to, at)
		s.deliver(good, to, at.Add(time.Second)) // a duplicate
		if got := <-w.reply; got != at || len(w.reply)+len(older.reply) > 0 {
			t.Errorf("%s: the reply came at %v", name, got)
		}
		s.remove(sequence)
		s.deliver(good, to, at) // late
	}
}

// Sequence numbers of pending requests are not reused.
func TestEchoSocket_SequenceNumbers(t *testing.T) {
	t.Parallel()
	s := &echoSocket{next: 0xfff0, waiting: map[uint16]*echoWait{}}
	first, _ := s.add(Request{})
	seen := map[uint16]bool{first: true}
	for range 1 << 16 {
		number, _ := s.add(Request{})
		if number == first {
			t.Fatal("the number of a request that waits was used again")
		}
		seen[number] = true
		s.remove(number)
	}
	if len(seen) != 1<<16 {
		t.Errorf("%d numbers, want all", len(seen))
	}
}

func TestChecksum(t *testing.T) {
	t.Parallel()
	for want, b := range map[uint16][]byte{ // computed by hand, after RFC 1071
		0xffff: {0, 0},
		0xf7fe: {8, 0, 0, 1},
		0x0000: {0xff, 0xff, 0xff, 0xff},
		0xf2fe: {8, 0, 0, 1, 5}, // an odd number of bytes
		0x220d: {0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7},
	} {
		if got := checksum(b); got != want {
			t.Errorf("%x: %04x, want %04x", b, got, want)
		}
	}
}
