package bpf

import (
	"bytes"
	"encoding/binary"
	"testing"
)

func TestPolicyKey(t *testing.T) {
	t.Parallel()
	for want, key := range map[PolicyLevel]PolicyKey{
		PolicyAll:      NewPolicyKey(7, PolicyCIDR, 0x1000001, PolicyAll, 6, 80),
		PolicyProtocol: NewPolicyKey(7, PolicyCIDR, 0x1000001, PolicyProtocol, 6, 80),
		PolicyPort:     NewPolicyKey(7, PolicyCIDR, 0x1000001, PolicyPort, 6, 80),
	} {
		wide := PolicyKey{Policy: 7, Identity: 0x1000001, Kind: 2}
		switch want {
		case PolicyProtocol:
			wide.Protocol = 6
		case PolicyPort:
			wide.Protocol, wide.Port, wide.PortBits = 6, 80<<8, 16
		}
		if key != wide {
			t.Errorf("level %d: %+v, want %+v", want, key, wide)
		}
		if want == PolicyPort && key.HostPort() != 80 {
			t.Errorf("port %d", key.HostPort())
		}
	}
}

// A block of ports has its bits in network order, directly after the static part of the prefix.
func TestPolicyRangeKey(t *testing.T) {
	t.Parallel()
	key := NewPolicyRangeKey(1, PolicyIdentity, 2, 17, 0x1234, 8)
	if first, last := key.Ports(); key.Prefixlen != 88 || first != 0x1200 || last != 0x12ff {
		t.Errorf("%+v: %#x to %#x", key, first, last)
	}
	var raw bytes.Buffer
	if err := binary.Write(&raw, binary.NativeEndian, key); err != nil {
		t.Fatal(err)
	}
	if want := []byte{1, 17, 0x12, 0}; !bytes.Equal(raw.Bytes()[12:], want) {
		t.Errorf("the key ends with %x, want %x", raw.Bytes()[12:], want)
	}
	if first, last := NewPolicyRangeKey(1, PolicyAny, 0, 6, 99, 0).Ports(); first != 0 || last != 65535 {
		t.Errorf("the whole range is %d to %d", first, last)
	}
}

func TestShape(t *testing.T) {
	t.Parallel()
	seen := map[uint32]bool{}
	for kind := PolicyAny; kind <= PolicyClass; kind++ {
		for level := PolicyAll; level <= PolicyPort; level++ {
			seen[ShapeEntry(kind, level)] = true
		}
		seen[ShapeRange(kind)] = true
	}
	seen[ShapeLocalhost], seen[ShapeNested], seen[ShapeStops] = true, true, true
	if len(seen) != 23 || seen[0] || ShapeEntry(PolicyCIDROutside, PolicyPort) != 1<<11 || ShapeRange(PolicyAny) != 1<<12 ||
		ShapeEntry(PolicyClass, PolicyAll) != 1<<19 || ShapeRange(PolicyClass) != 1<<22 {
		t.Errorf("bits %v", seen)
	}
}
