package policyexplain

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

var protocols = map[string]uint8{"TCP": policy.ProtocolTCP, "UDP": policy.ProtocolUDP, "SCTP": policy.ProtocolSCTP,
	"ICMP": policy.ProtocolICMP, "ICMPV6": policy.ProtocolICMPv6}

func namedPorts(ports []k8s.ContainerPort) []policy.NamedPort {
	var named []policy.NamedPort
	for _, p := range ports {
		if number, known := protocols[strings.ToUpper(p.Protocol)]; known {
			named = append(named, policy.NamedPort{Name: p.Name, Protocol: number, Number: p.Number})
		}
	}
	return named
}

// ParsePort parses "80/TCP". For ICMP the number is the type.
func ParsePort(text string) (port uint16, protocol uint8, err error) {
	number, name, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(number, 10, 16)
	protocol, known := protocols[strings.ToUpper(name)]
	if err != nil || !known {
		return 0, 0, fmt.Errorf("port %.50q: want PORT/PROTOCOL as in 80/TCP; protocols are TCP, UDP, SCTP, ICMP and ICMPv6, and of "+
			"ICMP the port is the type", text)
	}
	return uint16(n), protocol, nil
}
