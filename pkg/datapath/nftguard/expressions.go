package nftguard

import (
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	loopbackIndex = 1  // of lo, in every network namespace
	iifKind       = 26 // NFT_META_IIFKIND, which the libraries lack
	ipv6SourceAt  = 8  // bytes into the header
	familyIPv4    = byte(unix.NFPROTO_IPV4)
	familyIPv6    = byte(unix.NFPROTO_IPV6)
)

// expressions returns all rules with zero counters.
func (r Rule) expressions() (rules [][]expr.Any) {
	for _, group := range r.Groups {
		rules = append(rules, r.unmarked(group))
	}
	if r.NodeDevice != "" {
		for _, group := range r.Groups {
			rules = append(rules, marked(group))
		}
		if r.AnyMarked {
			rules = append(rules, append(r.mark(expr.CmpOpEq), &expr.Verdict{Kind: expr.VerdictAccept}))
		}
		rules = append(rules, r.remoteSource(familyIPv4), r.remoteSource(familyIPv6))
		rules = append(rules, r.nodeSource(familyIPv4), r.nodeSource(familyIPv6))
	}
	if r.NodeDevice != "" && r.PodDevice != "" {
		rules = append(rules, r.podSource(familyIPv4), r.podSource(familyIPv6))
	}
	return rules
}

// unmarked drops packets of a group without the mark: iifgroup == group, mark & mask != magic, counter, drop.
func (r Rule) unmarked(group uint32) []expr.Any {
	exprs := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(group)},
	}
	return append(append(exprs, r.mark(expr.CmpOpNeq)...), &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})
}

// mark compares the mark of a packet.
func (r Rule) mark(op expr.CmpOp) []expr.Any {
	u32 := binaryutil.NativeEndian.PutUint32
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: u32(r.Mask), Xor: u32(0)},
		&expr.Cmp{Op: op, Register: 1, Data: u32(r.Mark)},
	}
}

// marked accepts the packets of a group that unmarked has not dropped: the programs have compared the source with the pod's own address.
func marked(group uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(group)},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}

// remoteSource accepts packets of a family whose source has a route that does not lead to pods. The kernel returns no device for addresses of
// this node (nft_fib4_eval in net/ipv4/netfilter/nft_fib_ipv4.c and its IPv6 counterpart), so one FIB lookup decides for almost every packet
// from the network. The rules that drop repeat the lookup for the remaining packets.
func (r Rule) remoteSource(family byte) []expr.Any {
	exprs := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Fib{Register: 1, ResultOIFNAME: true, FlagSADDR: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: name("")},
	}
	if r.PodDevice != "" {
		exprs = append(exprs, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: name(r.PodDevice)})
	}
	return append(exprs, &expr.Verdict{Kind: expr.VerdictAccept})
}

// nodeSource drops packets of a family whose source is an address of this node and whose device is neither lo nor NodeDevice. The kernel has this check
// for IPv4 only, with a switch (accept_local). Exceptions are IPv6 link-local addresses, which may exist on every link, and VRF devices, which
// are the loopback of the addresses in the VRF.
func (r Rule) nodeSource(family byte) []expr.Any {
	u32 := binaryutil.NativeEndian.PutUint32
	exprs := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Meta{Key: expr.MetaKeyIIF, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: u32(loopbackIndex)},
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: name(r.NodeDevice)},
	}
	exprs = append(exprs, notLinkLocal(family)...)
	return append(exprs,
		&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagSADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: u32(unix.RTN_LOCAL)},
		&expr.Meta{Key: iifKind, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: name("vrf")},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop})
}

// notLinkLocal matches IPv6 sources that are not link-local. It is empty for IPv4.
func notLinkLocal(family byte) []expr.Any {
	if family == familyIPv4 {
		return nil
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: ipv6SourceAt, Len: 2},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Mask: []byte{0xff, 0xc0}, Xor: []byte{0, 0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{0xfe, 0x80}},
	}
}

// podSource drops packets of a family whose device is neither a pod link nor NodeDevice and whose source is routed to PodDevice. For pod links the
// programs compare the source with the pod's own address.
func (r Rule) podSource(family byte) []expr.Any {
	u32 := binaryutil.NativeEndian.PutUint32
	exprs := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
	}
	for _, group := range r.Groups {
		exprs = append(exprs, &expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: u32(group)})
	}
	exprs = append(exprs,
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: name(r.NodeDevice)})
	exprs = append(exprs, notLinkLocal(family)...)
	return append(exprs,
		&expr.Fib{Register: 1, ResultOIFNAME: true, FlagSADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name(r.PodDevice)},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop})
}

// name is a device name or kind as the kernel compares it: padded with zeros.
func name(s string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, s)
	return padded
}
