package endpointmanager

import (
	"net/netip"
	"regexp"
	"strconv"
	"time"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// fieldPattern matches complete fields of a damaged file. The needed values are short printable ASCII without escapes.
var fieldPattern = regexp.MustCompile(`"(\w+)":(?:"([ !#-\[\]-~]{0,256})"|(\d+)\b)`)

// damaged is the quarantine reason of an endpoint whose file could be read only in parts.
const damaged = "its state file is damaged; delete the endpoint when its pod is gone"

// salvage reads the intact fields of a damaged file, so that its addresses are not allocated again. The row is in quarantine, because the fields may be wrong
// and must not reach the datapath. It returns nil when the file names neither an address nor an attachment. An id of 0 means that the endpoint still needs an
// id.
func salvage(raw []byte, id uint16) *endpoints.Endpoint {
	fields := map[string]string{}
	for _, match := range fieldPattern.FindAllSubmatch(raw, -1) {
		fields[string(match[1])] = string(match[2]) + string(match[3])
	}
	ep := &endpoints.Endpoint{
		ID: id, Restored: true,
		Quarantine: damaged,
		IPv4:       addressOf(fields["ipv4"], netip.Addr.Is4),
		IPv6:       addressOf(fields["ipv6"], isIPv6),
		IPv4Pool:   fields["ipv4Pool"], IPv6Pool: fields["ipv6Pool"],
	}
	if _, err := endpoint.ParseRef("cni-attachment-id:" + fields["containerID"] + ":" + fields["ifName"]); err == nil {
		ep.ContainerID, ep.IfName = fields["containerID"], fields["ifName"]
	}
	if _, err := endpoint.ParseRef("pod-name:" + fields["k8sNamespace"] + "/" + fields["k8sPodName"]); err == nil {
		ep.K8sNamespace, ep.K8sPodName = fields["k8sNamespace"], fields["k8sPodName"]
	}
	if !ep.IPv4.IsValid() && !ep.IPv6.IsValid() && ep.ContainerID == "" {
		return nil
	}
	ep.HostIfName = fields["hostIfName"]
	ep.HostIfIndex, _ = strconv.Atoi(fields["hostIfIndex"]) // zero when it cannot be parsed, like the fields below
	ep.HostMAC, _ = mac.Parse(fields["hostMAC"])
	ep.PodMAC, _ = mac.Parse(fields["podMAC"])
	ep.Serial, _ = strconv.ParseUint(fields["serial"], 10, 64)
	ep.CreatedAt, _ = time.Parse(time.RFC3339Nano, fields["createdAt"])
	return ep
}

func addressOf(s string, family func(netip.Addr) bool) netip.Addr {
	a, err := netip.ParseAddr(s)
	if err != nil || !family(a) {
		return netip.Addr{}
	}
	return a
}

func isIPv6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() && a.Zone() == "" }
