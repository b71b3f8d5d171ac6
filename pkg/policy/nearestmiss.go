package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/waggle-net/waggle/pkg/identity"
)

// maxNamed limits how many peers or ports of a rule the reason for a miss names.
const maxNamed = 3

// whyNot returns the reason why the peers of a rule do not include a party.
func (p *Peers) whyNot(who *Party, options Options) string {
	if len(p.List) == 0 {
		return "it chooses no peer"
	}
	return some(len(p.List), func(i int) string { return p.List[i].whyNot(who, options) })
}

func (p *Peer) whyNot(who *Party, options Options) string {
	switch {
	case p.Labels != nil:
		for i := range p.Labels.Requirements {
			if r := &p.Labels.Requirements[i]; !r.Matches(who.Labels) {
				return "the peer does not have " + r.String()
			}
		}
	case !p.CIDR.IsValid():
		return "the peer is none of " + names(p.Identities)
	case !p.CIDR.Contains(who.Addr.Unmap()):
		return who.Addr.String() + " is not in " + p.CIDR.String()
	case !p.MatchesAddr(who.Addr):
		in := slices.IndexFunc(p.Except, func(except netip.Prefix) bool { return except.Contains(who.Addr.Unmap()) })
		return who.Addr.String() + " is in " + p.Except[in].String() + ", which is excepted"
	case isNode(who.Identity):
		return who.Addr.String() + " is in " + p.CIDR.String() + ", but it is a node's, and CIDRs of Cilium's policies match those only with " +
			"--policy-cidr-match-mode=nodes"
	}
	return who.Addr.String() + " is in " + p.CIDR.String() + ", but it is an endpoint's, and CIDRs of Cilium's policies match none"
}

// names lists the names of fixed identities.
func names(ids []uint32) string {
	texts := make([]string, 0, len(ids))
	for _, id := range ids {
		name := identity.Name(id)
		if name == "" {
			name = strconv.FormatUint(uint64(id), 10)
		}
		texts = append(texts, name)
	}
	return strings.Join(texts, ", ")
}

// whyNot returns the reason why the ports of a rule do not include a port.
func (p *Ports) whyNot(protocol uint8, port uint16, named []NamedPort) string {
	if len(p.List) == 0 {
		return "it names no port"
	}
	return some(len(p.List), func(i int) string { return p.List[i].whyNot(protocol, port, named) })
}

func (p *Port) whyNot(protocol uint8, port uint16, named []NamedPort) string {
	if p.Protocol != protocol {
		return fmt.Sprintf("it is for %s, not %s", p, ProtocolName(protocol))
	}
	if p.Name != "" {
		at := slices.IndexFunc(named, func(n NamedPort) bool { return n.Name == p.Name && n.Protocol == protocol })
		if at < 0 {
			return fmt.Sprintf("no peer serves the port named %s", p)
		}
		return fmt.Sprintf("the port named %s is %d, not %d", p, named[at].Number, port)
	}
	return fmt.Sprintf("it is for %s, not %d", p, port)
}

// String returns "80/TCP", "80-90/TCP", "web/TCP" or "all of TCP".
func (p *Port) String() string {
	name := ProtocolName(p.Protocol)
	switch {
	case p.All:
		return "all of " + name
	case p.Name != "":
		return p.Name + "/" + name
	case p.Low == p.High:
		return fmt.Sprintf("%d/%s", p.Low, name)
	}
	return fmt.Sprintf("%d-%d/%s", p.Low, p.High, name)
}

// ProtocolName returns the name of a protocol, such as "TCP", or "protocol" and its number.
func ProtocolName(protocol uint8) string {
	switch protocol {
	case ProtocolICMP:
		return "ICMP"
	case ProtocolICMPv6:
		return "ICMPv6"
	}
	for name, number := range protocols {
		if number == protocol {
			return name
		}
	}
	return "protocol " + strconv.Itoa(int(protocol))
}

// some joins the first texts of n, up to maxNamed.
func some(n int, text func(int) string) string {
	texts := make([]string, 0, maxNamed+1)
	for i := range min(n, maxNamed) {
		texts = append(texts, text(i))
	}
	if n > maxNamed {
		texts = append(texts, fmt.Sprintf("and %d more", n-maxNamed))
	}
	return strings.Join(texts, "; ")
}
