package tests

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/waggle-net/waggle/bpf"
)

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := binary.Write(&b, binary.NativeEndian, v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// previousFacts is the struct of the previous release.
type previousFacts struct {
	Ifindex, Identity, PolicyIngress, PolicyEgress, Revision uint32
	ID, Flags                                                uint16
	PodMac, HostMac                                          [6]uint8
	IPv4, GatewayIPv4                                        uint32
	IPv6, GatewayIPv6                                        [16]uint8
}

func TestPreviousFacts(t *testing.T) {
	t.Parallel()
	present := podA.facts()
	present.Revision = 77
	previous := previousFacts{Ifindex: present.Ifindex, Identity: present.Identity, PolicyIngress: 1, PolicyEgress: 1, Revision: 77, ID: present.Id,
		Flags: present.Flags, PodMac: present.PodMac, HostMac: present.HostMac, IPv4: present.Ipv4, GatewayIPv4: present.GatewayIpv4,
		IPv6: present.Ipv6, GatewayIPv6: present.GatewayIpv6}
	layout := bpf.PreviousLayoutOf(bpf.MapEndpointFacts)
	key, zeros := []byte{11, 0, 0, 0}, bpf.EndpointFacts{}

	// Entries of the previous release are converted unchanged.
	k, got, exists := layout.Forward(key, encoded(t, previous))
	if !exists || !bytes.Equal(k, key) || !bytes.Equal(got, encoded(t, present)) {
		t.Errorf("forward: %v, %x, want %x", exists, got, encoded(t, present))
	}

	// The conversion back keeps entries that drop everything, and makes all others allow everything.
	present.PolicyIngress, present.ShapeIngress, present.PolicyEgress, present.AuditEgress = 0x100, 0xfff, 0, 9
	previous.PolicyIngress, previous.PolicyEgress = 1, 0
	k, got, exists = layout.Back(key, encoded(t, present))
	if !exists || !bytes.Equal(k, key) || !bytes.Equal(got, encoded(t, previous)) {
		t.Errorf("back: %v, %x, want %x", exists, got, encoded(t, previous))
	}
	if _, got, _ := layout.Back(key, encoded(t, zeros)); !bytes.Equal(got, make([]byte, layout.Spec.ValueSize)) {
		t.Errorf("a free slot becomes %x", got)
	}
	for name, f := range map[string]bpf.Convert{"forward": layout.Forward, "back": layout.Back} {
		if _, _, exists := f(key, []byte{1}); exists {
			t.Errorf("%s: a value of one byte was converted", name)
		}
	}
	if layout.Spec.ValueSize != uint32(len(encoded(t, previous))) {
		t.Errorf("size %d", layout.Spec.ValueSize)
	}
}
