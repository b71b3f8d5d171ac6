package nodecidr

import (
	"fmt"
	"net/netip"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodecidrs"
)

// input contains all inputs of the choice.
type input struct {
	settings                 settings
	enableIPv4, enableIPv6   bool
	nodeName                 string
	node                     *k8s.Node    // nil without a row of this node
	ciliumNode               *cilium.Node // likewise
	waitingFor               string       // missing input: the Nodes, the CiliumNodes or the addresses of this node; empty when all are complete
	nodeIPv4                 netip.Addr   // primary address of the node; invalid when it has none
	addresses                []netip.Addr // all addresses of the node except the router addresses
	addressesPending         bool         // the addresses are not complete: nothing may be chosen yet
	listing                  bool         // the objects are those of the copy on disk, and the first list is awaited: only a flag may be chosen
	chosenIPv4, chosenIPv6   netip.Prefix // chosen in the previous round of this run; invalid in the first round
	derivedIPv4, derivedIPv6 bool         // the chosen prefix was derived
}

// choose returns all candidates, each with the reason for its result. The order of preference is: flag; spec.podCIDRs, spec.podCIDR and annotations of the
// Node, or the CiliumNode; the previous choice; a derived CIDR.
func choose(in input) []nodecidrs.Candidate {
	out := offered(in)
	awaitList(out, in)
	rejectOwn(out, in)
	ipv4 := pick(out, "ipv4", in.enableIPv4)
	ipv6 := pick(out, "ipv6", in.enableIPv6)

	if !ipv4.IsValid() {
		c := last(in, "ipv4", in.chosenIPv4, in.derivedIPv4, in.settings.requireIPv4, in.enableIPv4, deriveIPv4(in, ipv6))
		ipv4 = c.Prefix
		out = append(out, c)
	} else {
		out = append(out, needless("ipv4"))
	}
	if ipv6.IsValid() {
		return append(out, needless("ipv6"))
	}
	if !ipv4.IsValid() {
		ipv4 = deriveIPv4(in, ipv6) // IPv4 may be disabled, but the derived IPv6 range contains its bytes
	}
	return append(out, last(in, "ipv6", in.chosenIPv6, in.derivedIPv6, in.settings.requireIPv6, in.enableIPv6,
		deriveIPv6(in.settings.ipv6Cluster, ipv4)))
}

// awaitList keeps the candidates of the copy on disk from being chosen: the cluster may have given this range to another node since.
func awaitList(candidates []nodecidrs.Candidate, in input) {
	for i := range candidates {
		if c := &candidates[i]; in.listing && c.Reason == "" && c.Source != nodecidrs.Flag {
			c.Reason = nodecidrs.Waiting + in.waitingFor
		}
	}
}

// rejectOwn rejects ranges that contain an address of the node: with a route to pods for such a range, the node would lose the connection to its network.
func rejectOwn(candidates []nodecidrs.Candidate, in input) {
	for i := range candidates {
		c := &candidates[i]
		if c.Reason == "" && in.addressesPending {
			c.Reason = nodecidrs.Waiting + "the addresses of this node, which the range must not contain"
		}
		for _, addr := range in.addresses {
			if c.Reason == "" && c.Prefix.Contains(addr) {
				c.Reason = rejected + "it contains " + addr.String() + ", an address of this node"
			}
		}
	}
}

// pick chooses the first acceptable candidate of a family, sets the reasons of all candidates of the family and returns the chosen prefix; invalid without one.
func pick(candidates []nodecidrs.Candidate, family string, enabled bool) netip.Prefix {
	var winner nodecidrs.Candidate
	for i := range candidates {
		c := &candidates[i]
		switch {
		case c.Family != family || c.Reason != "":
		case !enabled:
			c.Reason = fmt.Sprintf("not used: %s is disabled (--enable-%s=false)", display(family), family)
		case winner.Chosen:
			c.Reason = "not used: " + winner.Source + " has precedence"
		default:
			c.Chosen, c.Reason = true, "chosen: the first acceptable candidate"
			winner = *c
		}
	}
	return winner.Prefix
}

// last returns the candidate for a family without an acceptable range: the previous choice, a derived range, or one that waits.
func last(in input, family string, before netip.Prefix, wasDerived, required, enabled bool,
	derived netip.Prefix) nodecidrs.Candidate {
	c := nodecidrs.Candidate{Family: family, Source: nodecidrs.Derived}
	switch {
	case !enabled:
		c.Reason = fmt.Sprintf("not used: %s is disabled (--enable-%s=false)", display(family), family)
	case before.IsValid() && !wasDerived:
		c.Source, c.Raw, c.Prefix, c.Chosen = nodecidrs.Kept, before.String(), before, true
		c.Reason = "chosen: no source names a range any longer, and the range in use stays until the agent restarts"
	case before.IsValid():
		c.Raw, c.Prefix, c.Chosen = before.String(), before, true
		c.Reason = "chosen: derived previously; it stays until the agent restarts or a range is offered"
	case in.waitingFor != "":
		c.Reason = nodecidrs.Waiting + in.waitingFor
	case required:
		c.Reason = nodecidrs.Waiting + missing(in, family)
	default:
		c.Raw, c.Prefix, c.Chosen = derived.String(), derived, true
		c.Reason = "chosen: no range is offered, and none is required"
	}
	return c
}

// missing describes the object that must contain the range of a family.
func missing(in input, family string) string {
	switch {
	case in.settings.source == fromCiliumNode && in.ciliumNode == nil:
		return fmt.Sprintf("the CiliumNode %s, whose %s pod CIDR is required (--ipam=cluster-pool)", in.nodeName, display(family))
	case in.settings.source == fromCiliumNode:
		return fmt.Sprintf("an %s pod CIDR in %s of the CiliumNode %s (--ipam=cluster-pool): the Deployment waggle-cluster writes it",
			display(family), ciliumNodeField, in.nodeName)
	}
	why := fmt.Sprintf("--k8s-require-%s-pod-cidr", family)
	if in.settings.source == fromNode {
		why = "--ipam=kubernetes"
	}
	if in.node == nil {
		return fmt.Sprintf("the Node %s, whose %s pod CIDR is required (%s)", in.nodeName, display(family), why)
	}
	return fmt.Sprintf("an %s pod CIDR in the Node %s: it is required (%s)", display(family), in.nodeName, why)
}

func needless(family string) nodecidrs.Candidate {
	return nodecidrs.Candidate{Family: family, Source: nodecidrs.Derived, Reason: "not used: a range is offered"}
}

// fallbackOctet is the second octet of a derived IPv4 range when the node has no IPv4 address and no IPv6 range is known.
const fallbackOctet = 15

// deriveIPv4 returns 10.X.0.0/16, where X is the last octet of the node's IPv4 address, or byte 11 (from 0) of its IPv6 range.
func deriveIPv4(in input, ipv6 netip.Prefix) netip.Prefix {
	octet := byte(fallbackOctet)
	switch {
	case in.settings.ipv4Node.IsValid():
		octet = in.settings.ipv4Node.As4()[3]
	case in.nodeIPv4.Is4():
		octet = in.nodeIPv4.As4()[3]
	case ipv6.IsValid():
		octet = ipv6.Addr().As16()[11]
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, octet, 0, 0}), 16)
}

// deriveIPv6 returns a /96 inside the cluster's /64; bits 64 to 95 are the address of the IPv4 range.
func deriveIPv6(cluster, ipv4 netip.Prefix) netip.Prefix {
	b, v4 := cluster.Addr().As16(), ipv4.Addr().As4()
	copy(b[8:12], v4[:])
	return netip.PrefixFrom(netip.AddrFrom16(b), 96)
}
