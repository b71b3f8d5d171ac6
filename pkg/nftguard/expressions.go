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

// expressions spells all rules with their counters at zero.
func (r Rule) expressions() (rules [][]expr.Any) {
	for _, group := range r.Groups {
		rules = append(rules, r.unmarked(group))
	}
	if r.NodeDevice != "" {
		for _, group := range r.Groups {
			rules = append(rules, judged(group))
		}
		rules = append(rules, r.elsewhere(familyIPv4), r.elsewhere(familyIPv6))
		rules = append(rules, r.nodeSource(familyIPv4), r.nodeSource(familyIPv6))
	}
	if r.NodeDevice != "" && r.PodDevice != "" {
		rules = append(rules, r.podSource(familyIPv4), r.podSource(familyIPv6))
	}
	return rules
}

// unmarked is the rule of a group: iifgroup is it, mark&mask is not the magic, count, drop.
func (r Rule) unmarked(group uint32) []expr.Any {
	u32 := binaryutil.NativeEndian.PutUint32
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: u32(group)},
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: u32(r.Mask), Xor: u32(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: u32(r.Mark)},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}

// judged accepts what is left of a group: our programs have compared its source with the pod's own address.
func judged(group uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(group)},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}

// elsewhere accepts packets of a family whose source has a route that does not lead to pods. The kernel returns no device for addresses of
// this node (nft_fib4_eval in net/ipv4/netfilter/nft_fib_ipv4.c, and its sibling of IPv6), so one look-up decides for almost every packet
// from the network; the rules that drop look up the others again.
func (r Rule) elsewhere(family byte) []expr.Any {
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

// nodeSource is the rule of a family: iif is neither lo nor the node's own device, the source is an address of this node,
// count, drop. The kernel has a check of its own for IPv4 alone, and a switch for it (accept_local). What passes:
// link-local addresses of IPv6, which every link may have for itself, and the device of a VRF, which is the loopback of
// all addresses in it.
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

// notLinkLocal goes on with packets whose source is not link-local, which says nothing of IPv4.
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

// podSource is another rule of a family: iif is no pod link and not the node's own device, the way back to the source is that
// to pods, count, drop. From a pod link, our programs have compared the source with the pod's own.
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

// name is how the kernel compares names of devices and of their kinds.
func name(s string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, s)
	return padded
}
