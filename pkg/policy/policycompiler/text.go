package policycompiler

import (
	"strconv"

	"github.com/waggle-net/waggle/pkg/policy"
)

// PortText formats the ports of a key: "80/TCP", "1024-2047/UDP", "ANY/TCP" or "ANY".
func (k Key) PortText() string {
	port := "ANY"
	switch {
	case k.Protocol == 0:
		return port
	case k.IsStop():
		return "not the CIDRs around it"
	case k.IsRange():
		port = strconv.Itoa(int(k.Port)) + "-" + strconv.Itoa(int(k.LastPort()))
	case k.PortBits > 0:
		port = strconv.Itoa(int(k.Port))
	}
	return port + "/" + policy.ProtocolName(k.Protocol)
}
