package nftforward

import (
	"bytes"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// outcome is the result of a chain for the packet.
type outcome int

const (
	continues outcome = iota // the end of the chain, or return
	accepted
	dropped
	undecided // accepted or not
)

// match is the result of a rule's conditions.
type match int

const (
	no match = iota
	maybe
	yes
)

const (
	stateInvalid = 1  // conntrack state as a bit: NF_CT_STATE_INVALID_BIT
	stateNew     = 8  // NF_CT_STATE_BIT(IP_CT_NEW)
	jumpLimit    = 16 // NFT_JUMP_STACK_SIZE
)

// evaluation runs rules for one packet.
type evaluation struct {
	*ruleset
	packet Packet
}

// chain evaluates the rules of a chain in order.
func (e *evaluation) chain(name string, depth int) (outcome, error) {
	if depth > jumpLimit {
		return undecided, nil
	}
	rules, err := e.of(name)
	if err != nil {
		return undecided, err
	}
	left := false // the packet may have left the chain at an earlier rule with undecided conditions
	for _, rule := range rules {
		holds, verdict, err := e.rule(rule)
		if err != nil {
			return undecided, err
		}
		if holds == no || verdict == nil {
			continue
		}
		result := continues
		switch verdict.Kind {
		case expr.VerdictAccept:
			result = accepted
		case expr.VerdictDrop:
			result = dropped
		case expr.VerdictReturn:
		case expr.VerdictJump, expr.VerdictGoto:
			if result, err = e.chain(verdict.Chain, depth+1); err != nil {
				return undecided, err
			}
		case expr.VerdictContinue, expr.VerdictBreak:
			continue
		default: // a queue
			result = undecided
		}
		ends := result == continues && verdict.Kind != expr.VerdictJump
		switch {
		case result == undecided, result == accepted && holds == maybe:
			return undecided, nil
		case holds == maybe:
			left = left || ends // the packet may continue after this rule, so later rules decide
		case ends || result != continues:
			return settled(result, left), nil
		}
	}
	return continues, nil
}

// settled returns the outcome of a chain; left means that the packet may have left the chain earlier. Then a drop is not certain, and the outcome is continues.
func settled(result outcome, left bool) outcome {
	switch {
	case !left || result == continues:
		return result
	case result == dropped:
		return continues
	}
	return undecided
}

// rule returns whether the conditions of a rule hold, and its verdict, or nil.
func (e *evaluation) rule(rule *nftables.Rule) (holds match, verdict *expr.Verdict, err error) {
	holds = yes
	registers := map[uint32][]byte{} // known values
	for _, expression := range rule.Exprs {
		this := yes
		switch x := expression.(type) {
		case *expr.Meta:
			if !x.SourceRegister {
				registers[x.Register] = e.meta(x.Key)
			}
		case *expr.Ct:
			registers[x.Register] = e.conntrack(x.Key)
		case *expr.Payload:
			if x.OperationType == expr.PayloadLoad {
				registers[x.DestRegister] = e.payload(x)
			}
		case *expr.Bitwise:
			registers[x.DestRegister] = bitwise(registers[x.SourceRegister], x)
		case *expr.Cmp:
			this = compare(registers[x.Register], x)
		case *expr.Lookup:
			this, err = e.lookup(registers[x.SourceRegister], x)
		case *expr.Match:
			this = e.extension(x)
		case *expr.Verdict:
			verdict = x
		case *expr.Reject:
			verdict = &expr.Verdict{Kind: expr.VerdictDrop}
		case *expr.Target:
			if x.Name == "REJECT" {
				verdict = &expr.Verdict{Kind: expr.VerdictDrop}
			}
		case *expr.Queue:
			verdict = &expr.Verdict{Kind: expr.VerdictQueue}
		case *expr.Counter, *expr.Log, *expr.Notrack, *expr.FlowOffload:
		case *expr.Immediate:
			delete(registers, x.Register)
		case *expr.Fib:
			registers[x.Register] = reversePath(x)
		default:
			this = maybe
		}
		if err != nil || this == no {
			return no, nil, err
		}
		holds = min(holds, this)
	}
	return holds, verdict, nil
}

// meta returns metadata of the packet in the bytes of a register; nil when it is unknown.
func (e *evaluation) meta(key expr.MetaKey) []byte {
	switch key {
	case expr.MetaKeyIIFNAME:
		return name(e.packet.In)
	case expr.MetaKeyOIFNAME:
		if e.packet.Out != "" {
			return name(e.packet.Out)
		}
	case expr.MetaKeyIIFGROUP:
		return binaryutil.NativeEndian.PutUint32(e.packet.InGroup)
	case expr.MetaKeyL4PROTO:
		return []byte{unix.IPPROTO_TCP}
	case expr.MetaKeyNFPROTO:
		if e.packet.Source.Is6() {
			return []byte{unix.NFPROTO_IPV6}
		}
		return []byte{unix.NFPROTO_IPV4}
	}
	return nil
}

// state returns the state of the packet in connection tracking, as a bit.
func (e *evaluation) state() uint32 {
	if e.packet.Invalid {
		return stateInvalid
	}
	return stateNew
}

// conntrack returns state of the connection; nil when it is unknown.
func (e *evaluation) conntrack(key expr.CtKey) []byte {
	switch key {
	case expr.CtKeySTATE:
		return binaryutil.NativeEndian.PutUint32(e.state())
	case expr.CtKeySTATUS:
		return binaryutil.NativeEndian.PutUint32(0)
	}
	return nil
}

// reversePath returns the result of a route lookup for the source. A lookup that is restricted to the device of the packet finds no route, because routes to
// pods lead to another device.
func reversePath(x *expr.Fib) []byte {
	if x.FlagSADDR && x.FlagIIF && !x.ResultADDRTYPE {
		return name("")
	}
	return nil
}

// payload returns bytes of the packet's IP header; nil when they are unknown. The protocol and the source address are known.
func (e *evaluation) payload(x *expr.Payload) []byte {
	protocolAt, sourceAt := uint32(9), uint32(12)
	if e.packet.Source.Is6() {
		protocolAt, sourceAt = 6, 8
	}
	source := e.packet.Source.AsSlice()
	switch {
	case x.Base != expr.PayloadBaseNetworkHeader:
		return nil
	case x.Offset == protocolAt && x.Len == 1:
		return []byte{unix.IPPROTO_TCP}
	case x.Offset == sourceAt && x.Len <= uint32(len(source)):
		return source[:x.Len]
	}
	return nil
}

func bitwise(value []byte, x *expr.Bitwise) []byte {
	if len(value) < int(x.Len) || len(x.Mask) != int(x.Len) || len(x.Xor) != int(x.Len) {
		return nil
	}
	result := make([]byte, x.Len)
	for i := range result {
		result[i] = value[i]&x.Mask[i] ^ x.Xor[i]
	}
	return result
}

// compare compares as many bytes as the rule has, because device names in rules may be prefixes.
func compare(value []byte, x *expr.Cmp) match {
	if value == nil || len(value) < len(x.Data) {
		return maybe
	}
	switch equal := bytes.Equal(value[:len(x.Data)], x.Data); {
	case x.Op != expr.CmpOpEq && x.Op != expr.CmpOpNeq:
		return maybe
	case equal == (x.Op == expr.CmpOpEq):
		return yes
	}
	return no
}

func (e *evaluation) lookup(value []byte, x *expr.Lookup) (match, error) {
	if value == nil || x.IsDestRegSet {
		return maybe, nil
	}
	elements, simple, err := e.elements(x.SetName)
	if err != nil || !simple {
		return maybe, err
	}
	found := false
	for _, element := range elements {
		found = found || len(element.Key) > 0 && bytes.Equal(element.Key, value[:min(len(element.Key), len(value))])
	}
	if found != x.Invert {
		return yes, nil
	}
	return no, nil
}

// extension evaluates a match extension of iptables.
func (e *evaluation) extension(x *expr.Match) match {
	if x.Name == "comment" {
		return yes
	}
	info, is := x.Info.(*xt.ConntrackMtinfo3)
	if !is || xt.ConntrackFlags(info.MatchFlags)&^xt.ConntrackStateAlias != xt.ConntrackState {
		return maybe
	}
	if (uint32(info.StateMask)&e.state() != 0) != (xt.ConntrackFlags(info.InvertFlags)&xt.ConntrackState != 0) {
		return yes
	}
	return no
}

// name returns a device name in the form that the kernel compares: padded with zeros.
func name(s string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, s)
	return padded
}
