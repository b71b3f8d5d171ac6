package tests

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/mac"
)

const (
	tunnelPort = 8472
	ifTunnel   = ifUnmanaged // programs use nothing but the index of the tunnel device
)

// Other nodes of the tests: otherNode and distantPod with their ranges.
var (
	distantRange = map[int]netip.Prefix{4: netip.MustParsePrefix("10.2.0.0/24"), 6: netip.MustParsePrefix("fd00:2::/64")}
	thirdNode    = map[int]netip.Addr{4: netip.MustParseAddr("198.51.100.3"), 6: netip.MustParseAddr("2001:db8:2::3")}
	thirdPod     = map[int]netip.Addr{4: netip.MustParseAddr("10.3.0.5"), 6: netip.MustParseAddr("fd00:3::5")}
	tunnelMAC    = mac.Addr{2, 9, 9, 9, 9, 9}
)

// Ids of the other nodes.
const (
	otherID uint16 = 7
	thirdID uint16 = 16383
)

// identityFromVNI is an identity that policies know and ipcache does not contain.
const identityFromVNI = 0x4712

// tunnelledAs is the name of the program that replaces the tunnel device, see [node.arriveAs].
const tunnelledAs = "tunnelled"

// onTunnel runs a test on a node with a tunnel over IPv4 to two other nodes.
func onTunnel(t *testing.T, test func(t *testing.T, n *node, family int)) {
	t.Helper()
	onUnderlay(t, 4, test)
}

// onTunnelWith is [onTunnel] with programs that encapsulate or decapsulate by themselves.
func onTunnelWith(t *testing.T, modes uint32, test func(t *testing.T, n *node, family int)) {
	t.Helper()
	onUnderlayWith(t, 4, modes, test)
}

// onUnderlay runs a test on a node with a tunnel to two other nodes.
func onUnderlay(t *testing.T, underlay int, test func(t *testing.T, n *node, family int)) {
	t.Helper()
	onUnderlayWith(t, underlay, 0, test)
}

func onUnderlayWith(t *testing.T, underlay int, modes uint32, test func(t *testing.T, n *node, family int)) {
	t.Helper()
	for _, family := range families {
		t.Run(fmt.Sprintf("IPv%d over IPv%d", family, underlay), func(t *testing.T) {
			t.Parallel()
			n := newNodeWith(t, map[string]uint32{bpf.VariableVerdictEvents: 0, bpf.VariableTunnelPort: tunnelPort, bpf.VariableEncapModes: modes}, nil)
			n.surround()
			n.update(bpf.MapDatapath, uint32(0), bpf.DatapathState{Protocol: bpf.Protocol(bpf.ProtocolHighest)})
			n.update(bpf.MapOverlay, uint32(0), bpf.Overlay{Ifindex: ifTunnel})
			for id, addrs := range map[uint16]map[int]netip.Addr{bpf.NodeThis: nodeIn, otherID: otherNode, thirdID: thirdNode} {
				for _, f := range families {
					n.update(bpf.MapNodeAddrs, bpf.NewAddrKey(addrs[f]), bpf.NodeAddr{Node: id, Kind: bpf.NodeUnderlay})
				}
			}
			n.reach(otherID, otherNode[underlay], nodeIn[underlay])
			n.reach(thirdID, thirdNode[underlay], nodeIn[underlay])
			for _, f := range families {
				n.update(bpf.MapIpcachePrefixes, bpf.NewLpmKey(distantRange[f]), bpf.IpcacheEntry{Node: otherID})
				n.update(bpf.MapIpcache, bpf.NewAddrKey(distantPod[f]), bpf.IpcacheEntry{Identity: identityDistant, Node: otherID})
				n.update(bpf.MapIpcache, bpf.NewAddrKey(otherNode[f]), bpf.IpcacheEntry{Identity: 6, Node: otherID})
				n.update(bpf.MapIpcache, bpf.NewAddrKey(thirdPod[f]), bpf.IpcacheEntry{Identity: identityDistant, Node: thirdID})
			}
			n.update(bpf.MapIpcache, bpf.NewAddrKey(thirdNode[4]), bpf.IpcacheEntry{Identity: 6, Node: thirdID})
			n.policiesKnow(identityFromVNI)
			test(t, n, family)
		})
	}
}

// reach assigns an underlay address to a node.
func (n *node) reach(id uint16, addr, source netip.Addr) {
	n.t.Helper()
	key := bpf.NewAddrKey(addr)
	n.update(bpf.MapNodes, uint32(id), bpf.Node{Family: key.Family, Underlay: key.Addr, UnderlaySource: bpf.NewAddrKey(source).Addr})
}

// completes does the same for a node whose packets pass a device that completes their checksums.
func (n *node) completes(id uint16, addr, source netip.Addr, device uint32) {
	n.t.Helper()
	key := bpf.NewAddrKey(addr)
	n.update(bpf.MapNodes, uint32(id), bpf.Node{Family: key.Family, Underlay: key.Addr, UnderlaySource: bpf.NewAddrKey(source).Addr, Ifindex: device})
}

// policiesKnow makes exactly these identities known to policies.
func (n *node) policiesKnow(identities ...uint32) {
	n.t.Helper()
	words := make([]uint64, bpf.IdentityWords)
	for _, identity := range identities {
		word, bit := bpf.IdentityBit(identity)
		words[word] |= bit
	}
	for word, bits := range words {
		n.update(bpf.MapKnownIdentities, uint32(word), bits)
	}
}

// outerHeader is the metadata that the tunnel device provides about the outer header of a packet.
type outerHeader struct {
	from netip.Addr
	vni  uint32
	to   netip.Addr // the zero value means the address of this node in the tunnel
}

// arriveAs creates a program that sets the tunnel metadata of packets and then enters overlay_ingress: PROG_TEST_RUN sets none.
func (n *node) arriveAs(h outerHeader) {
	n.t.Helper()
	calls, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	check(n.t, err)
	n.t.Cleanup(func() { _ = calls.Close() })
	check(n.t, calls.Put(uint32(0), n.program(bpf.OverlayIngress)))
	code := append(withTunnelKey(h, 0), asm.Mov.Reg(asm.R1, asm.R6), asm.LoadMapPtr(asm.R2, calls.FD()), asm.Mov.Imm(asm.R3, 0), asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, 4), asm.Return())
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: code, License: "GPL"})
	check(n.t, err)
	n.t.Cleanup(func() { _ = p.Close() })
	n.setProgram(tunnelledAs, p)
}

const zeroCsumTx = 1 << 1 // BPF_F_ZERO_CSUM_TX

// withTunnelKey returns code that sets the tunnel metadata of a packet. It keeps the packet in R6.
func withTunnelKey(h outerHeader, flags int32) asm.Instructions {
	const size = 44 // of struct bpf_tunnel_key
	var key [size + 4]byte
	binary.NativeEndian.PutUint32(key[0:], h.vni)
	if !h.to.IsValid() {
		h.to = nodeIn[int(bpf.NewAddrKey(h.from).Family)]
	}
	if h.from.Is4() { // the local address of a sent packet is the source of a received one
		for at, addr := range map[int]netip.Addr{4: h.to, 28: h.from} {
			a := addr.As4()
			binary.NativeEndian.PutUint32(key[at:], binary.BigEndian.Uint32(a[:]))
		}
	} else {
		to, from := h.to.As16(), h.from.As16()
		copy(key[4:], to[:])
		copy(key[28:], from[:])
		flags |= 1 // BPF_F_TUNINFO_IPV6
	}
	code := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	for at := 0; at < size; at += 4 {
		code = append(code, asm.StoreImm(asm.RFP, int16(at-size-4), int64(int32(binary.NativeEndian.Uint32(key[at:]))), asm.Word))
	}
	return append(code, asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -size-4), asm.Mov.Imm(asm.R3, size), asm.Mov.Imm(asm.R4, flags),
		asm.FnSkbSetTunnelKey.Call())
}

// inside is a packet as the tunnel device delivers it: the sender wrote the addresses of its frame.
func inside(src, dst netip.Addr) flow {
	return flow{from: mac.Addr{2, 8, 8, 8, 8, 8}, to: mac.Addr{2, 7, 7, 7, 7, 8}, src: src, dst: dst}
}

// markOf returns the mark of a packet whose sender has an identity.
func markOf(identity uint32) uint32 { return identity&0xffff<<16 | identity>>16&0xff | 0xf00 }
