package nodecidr

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/waggle-net/waggle/pkg/kubernetes/lastapplied"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodecidrs"
)

const (
	unknown  = "unknown"    // family of a candidate that does not parse
	rejected = "rejected: " // prefix of the reason of an unusable candidate

	byThisAgent     = "not used: written by this agent"
	ciliumNodeField = "spec.ipam.podCIDRs"
)

// annotations are the annotations with a pod CIDR, in order of preference. A CIDR of the other family is rejected.
var annotations = []struct{ key, family string }{
	{"network.cilium.io/ipv4-pod-cidr", "ipv4"},
	{"io.cilium.network.ipv4-pod-cidr", "ipv4"},
	{"network.cilium.io/ipv6-pod-cidr", "ipv6"},
	{"io.cilium.network.ipv6-pod-cidr", "ipv6"},
}

// offered returns the candidates from flags, the Node and the CiliumNode in order of preference. A candidate with a Reason cannot be chosen.
func offered(in input) []nodecidrs.Candidate {
	var out []nodecidrs.Candidate
	for _, prefix := range []netip.Prefix{in.settings.ipv4Range, in.settings.ipv6Range} {
		if prefix.IsValid() {
			out = append(out, candidate(nodecidrs.Flag, prefix.String()))
		}
	}
	return append(append(out, nodeOffers(in)...), ciliumNodeOffers(in)...)
}

// nodeOffers returns the candidates from the Node.
func nodeOffers(in input) []nodecidrs.Candidate {
	if in.node == nil {
		return nil
	}
	out := podCIDRs(in.node)
	if in.node.PodCIDR != "" {
		out = append(out, candidate("spec.podCIDR", in.node.PodCIDR))
	}
	written := lastapplied.Of(in.node.Annotations)
	for _, a := range annotations {
		raw, ok := in.node.Annotations[a.key]
		if !ok {
			continue
		}
		c := candidate(a.key, raw)
		switch {
		case written.Ours(a.key, raw):
			c.Reason = byThisAgent
		case c.Reason == "" && c.Family != a.family:
			c.Reason = rejected + "the annotation is for " + display(a.family)
		}
		out = append(out, c)
	}
	if in.settings.source == fromCiliumNode {
		for i := range out {
			out[i].Reason = "not used: --ipam=cluster-pool takes the CIDR from the CiliumNode"
		}
	}
	return out
}

// ciliumNodeOffers returns the candidates from the CiliumNode. A CIDR that the agent wrote, in this or in a previous IPAM mode, cannot be chosen.
func ciliumNodeOffers(in input) []nodecidrs.Candidate {
	if in.ciliumNode == nil {
		return nil
	}
	written := lastapplied.Of(in.ciliumNode.Annotations)
	ours := written.Ours(ciliumNodeField, strings.Join(in.ciliumNode.PodCIDRs, ","))
	out := make([]nodecidrs.Candidate, len(in.ciliumNode.PodCIDRs))
	for i, raw := range in.ciliumNode.PodCIDRs {
		out[i] = candidate("CiliumNode."+ciliumNodeField+"["+strconv.Itoa(i)+"]", raw)
		switch {
		case ours:
			out[i].Reason = byThisAgent
		case in.settings.source != fromCiliumNode:
			out[i].Reason = "not used: only --ipam=cluster-pool takes the CIDR from the CiliumNode"
		}
	}
	return out
}

// maxPodCIDRs is the maximum number of entries that Kubernetes allows: one for each family.
const maxPodCIDRs = 2

// podCIDRs returns the candidates from spec.podCIDRs. All entries are rejected when the list has more than two. Two entries of one family are both rejected,
// because the intended one is unknown.
func podCIDRs(node *k8s.Node) []nodecidrs.Candidate {
	var out []nodecidrs.Candidate
	perFamily := map[string]int{}
	for i, raw := range node.PodCIDRs {
		c := candidate("spec.podCIDRs["+strconv.Itoa(i)+"]", raw)
		if c.Reason == "" {
			perFamily[c.Family]++
		}
		out = append(out, c)
	}
	for i := range out {
		c := &out[i]
		switch {
		case c.Reason != "":
		case len(out) > maxPodCIDRs:
			c.Reason = rejected + fmt.Sprintf("spec.podCIDRs has %d entries, at most %d are allowed", len(out), maxPodCIDRs)
		case perFamily[c.Family] > 1:
			c.Reason = rejected + "spec.podCIDRs has two entries of " + display(c.Family)
		}
	}
	return out
}

const longest = 64 // maximum length in bytes of a value in a row

// candidate returns the candidate for a value of a flag or an object. A value that does not parse is rejected.
func candidate(source, raw string) nodecidrs.Candidate {
	c := nodecidrs.Candidate{Family: unknown, Source: source, Raw: printable.Short(raw, longest)}
	prefix, family, err := parse(raw)
	if err != nil {
		c.Reason = rejected + err.Error()
		return c
	}
	c.Family, c.Prefix = family, prefix
	return c
}

// parse returns the CIDR and its family. It clears host bits, as Kubernetes does, and rejects CIDRs whose addresses pods cannot have.
func parse(raw string) (netip.Prefix, string, error) {
	prefix, err := netip.ParsePrefix(strings.TrimSpace(raw))
	if err != nil {
		return netip.Prefix{}, "", errors.New("not a CIDR such as 10.1.0.0/24 or fd00:1::/64")
	}
	prefix = prefix.Masked()
	addr := prefix.Addr()
	switch {
	case addr.Is4In6():
		return netip.Prefix{}, "", errors.New("an IPv4 range written as IPv6")
	case prefix.Bits() < 8:
		return netip.Prefix{}, "", errors.New("too large: a prefix length of 8 or more is needed")
	case addr.IsLoopback(), addr.IsMulticast(), addr.IsLinkLocalUnicast(), addr.IsUnspecified():
		return netip.Prefix{}, "", errors.New("pods cannot have loopback, link-local, multicast or unspecified addresses")
	}
	if addr.Is4() {
		return prefix, "ipv4", nil
	}
	return prefix, "ipv6", nil
}

func display(family string) string {
	return map[string]string{"ipv4": "IPv4", "ipv6": "IPv6"}[family]
}
