package nodes

import (
	"strconv"
	"strings"
)

// Receives describes the packets that a node accepts from other nodes. Its agent publishes it in the annotation waggle.io/receives of its CiliumNode.
type Receives struct {
	Agent  bool   `json:"agent,omitempty"`  // an agent of Waggle, of any release, writes the CiliumNode
	Known  bool   `json:"known,omitempty"`  // the agent has published the fields below; previous releases do not
	Direct bool   `json:"direct,omitempty"` // packets of pods without a tunnel, from all nodes
	Port   uint16 `json:"port,omitempty"`   // UDP port of its VXLAN tunnel; 0 when it receives none
	IPv4   bool   `json:"ipv4,omitempty"`   // outer headers of IPv4
	IPv6   bool   `json:"ipv6,omitempty"`   // outer headers of IPv6
}

// Words of the annotation: "direct", "vxlan:8472:ipv4+ipv6", or both, separated by a comma.
const (
	wordDirect = "direct"
	wordVXLAN  = "vxlan"
	wordIPv4   = "ipv4"
	wordIPv6   = "ipv6"
)

// ParseReceives parses the annotation. It ignores unknown words, which a later release may add. Known is false without a known word.
func ParseReceives(text string) (r Receives) {
	for word := range strings.SplitSeq(text, ",") {
		if word == wordDirect {
			r.Direct = true
		}
		protocol, rest, _ := strings.Cut(word, ":")
		port, families, _ := strings.Cut(rest, ":")
		if number, err := strconv.ParseUint(port, 10, 16); protocol == wordVXLAN && err == nil && number != 0 {
			r.Port, r.IPv4, r.IPv6 = uint16(number), false, false
			for family := range strings.SplitSeq(families, "+") {
				r.IPv4, r.IPv6 = r.IPv4 || family == wordIPv4, r.IPv6 || family == wordIPv6
			}
		}
	}
	r.Known = r.Direct || r.Port != 0
	return r
}

// String returns the annotation; "" if it holds no known word.
func (r Receives) String() string {
	var words, families []string
	if r.Direct {
		words = append(words, wordDirect)
	}
	if r.IPv4 {
		families = append(families, wordIPv4)
	}
	if r.IPv6 {
		families = append(families, wordIPv6)
	}
	if r.Port != 0 {
		words = append(words, wordVXLAN+":"+strconv.Itoa(int(r.Port))+":"+strings.Join(families, "+"))
	}
	return strings.Join(words, ",")
}

// AcceptsDirect reports whether other nodes may send packets of pods to the node without a tunnel. A node that has published nothing accepts them.
func (r Receives) AcceptsDirect() bool { return r.Direct || !r.Known }

// Tunnel reports whether the node has published that it receives a tunnel on a port, between addresses of a family.
func (r Receives) Tunnel(port uint16, ipv6 bool) bool {
	return r.Port != 0 && r.Port == port && (ipv6 && r.IPv6 || !ipv6 && r.IPv4)
}
