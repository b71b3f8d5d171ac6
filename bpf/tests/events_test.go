package tests

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/events"
)

// A flood of drops is counted completely, reported up to the bucket's size, and the number of suppressed reports is known.
func TestPrivilegedEvents_TokenBucket(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const flood = 500
	in := sent(podA, podB.ipv4, outside[4]).bytes(t)
	// Within one system call the program runs faster than the bucket refills, however slow the test is. A signal interrupts the call, which is then repeated.
	if _, err := n.program(bpf.PodEgress).Run(&ebpf.RunOptions{Data: in, DataOut: make([]byte, len(in)+256), Context: skBuff{Ifindex: ifPodA},
		Repeat: flood}); err != nil {
		t.Fatal(err)
	}
	reported := 0
	for n.event() != nil {
		reported++
	}
	var bucket bpf.TokenBucket
	if err := n.maps[bpf.MapDropTokens].Lookup(uint32(podA.id), &bucket); err != nil {
		t.Fatal(err)
	}
	c := n.count(events.SourceIP, bpf.DirectionEgress)
	if c.Packets < flood {
		t.Errorf("counted %+v", c)
	}
	if reported < 32 || bucket.Suppressed == 0 || reported+int(bucket.Suppressed) != int(c.Packets) {
		t.Errorf("%d reported, %d suppressed, of %d", reported, bucket.Suppressed, c.Packets)
	}

	// Another endpoint has a bucket of its own.
	in = sent(podB, podA.ipv4, outside[4]).bytes(t)
	n.wantNext(n.run(bpf.PodEgress, ifPodB, in), events.SourceIP)
}

// wantNext checks that the packet was dropped and reported, whatever was counted before.
func (n *node) wantNext(got outcome, reason events.Reason) {
	n.t.Helper()
	if e := n.event(); got.action != actShot || e == nil || e.Reason != reason {
		n.t.Errorf("action %d, event %+v, want %q", got.action, e, reason)
	}
}

// Drops of packets without an endpoint share one bucket and are reported too.
func TestPrivilegedEvents_NoEndpoint(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.wantNext(n.run(bpf.PodEgress, ifUnmanaged, sent(podA, podA.ipv4, podB.ipv4).bytes(t)), events.UnknownSender)
	var bucket bpf.TokenBucket
	if err := n.maps[bpf.MapDropTokens].Lookup(uint32(0), &bucket); err != nil || bucket.Tokens == 0 || bucket.Refilled == 0 {
		t.Errorf("bucket %+v, %v", bucket, err)
	}
}

// When no process reads the ring buffer, each event that does not fit is counted.
func TestPrivilegedEvents_Lost(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const drops = 5000 // of 128 bytes and the header: more than 512 kB
	in := sent(podA, podB.ipv4, outside[4])
	in.payload = gopacket.Payload(make([]byte, 300))
	packet := in.bytes(t)
	for range drops {
		n.update(bpf.MapDropTokens, uint32(podA.id), bpf.TokenBucket{Refilled: 1 << 62, Tokens: 10})
		n.run(bpf.PodEgress, ifPodA, packet)
	}
	reported := 0
	for n.event() != nil {
		reported++
	}
	var perCPU []uint64
	if err := n.maps[bpf.MapEventsLost].Lookup(uint32(0), &perCPU); err != nil {
		t.Fatal(err)
	}
	lost := 0
	for _, v := range perCPU {
		lost += int(v)
	}
	if lost == 0 || reported+lost != drops {
		t.Errorf("%d reported and %d lost, of %d", reported, lost, drops)
	}
}
