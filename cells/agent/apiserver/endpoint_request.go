package apiserver

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/mac"
)

// Properties of a request that Cilium does not have.
const (
	netnsPathProperty  = "netns-path"
	netnsInodeProperty = "netns-inode"
)

// parseRequest converts the fields of a request to typed values; the manager validates them. The error names all fields that cannot be parsed.
func parseRequest(m models.EndpointChangeRequest) (endpoint.Request, error) {
	p := fields{}
	r := endpoint.Request{
		ContainerID:  m.ContainerID,
		IfName:       m.ContainerInterfaceName,
		NetnsPath:    p.property(m.Properties, netnsPathProperty),
		NetnsCookie:  p.number("netns-cookie", m.NetnsCookie),
		NetnsInode:   p.number("properties."+netnsInodeProperty, p.property(m.Properties, netnsInodeProperty)),
		HostIfName:   m.InterfaceName,
		HostIfIndex:  p.ifIndex(m.InterfaceIndex),
		HostMAC:      p.mac("host-mac", m.HostMAC),
		PodMAC:       p.mac("mac", m.MAC),
		IPv4:         p.addr("addressing.ipv4", m.Addressing.Ipv4),
		IPv6:         p.addr("addressing.ipv6", m.Addressing.Ipv6),
		IPv4Pool:     m.Addressing.Ipv4PoolName,
		IPv6Pool:     m.Addressing.Ipv6PoolName,
		IPv4UUID:     m.Addressing.Ipv4ExpirationUUID,
		IPv6UUID:     m.Addressing.Ipv6ExpirationUUID,
		K8sNamespace: m.K8SNamespace,
		K8sPodName:   m.K8SPodName,
		K8sUID:       m.K8SUid,
		Labels:       m.Labels,
		Wait:         m.SyncBuildEndpoint,
	}
	// The name of the pod may contain the namespace, as in "namespace/pod".
	if namespace, name, both := strings.Cut(m.K8SPodName, "/"); both && m.K8SNamespace == "" {
		r.K8sNamespace, r.K8sPodName = namespace, name
	}
	if len(p.errs) > 0 {
		return endpoint.Request{}, fmt.Errorf("%w: %w", endpoint.ErrInvalid, errors.Join(p.errs...))
	}
	return r, nil
}

// fields parses fields and collects the errors.
type fields struct{ errs []error }

func (p *fields) wrong(name, value, want string) {
	p.errs = append(p.errs, fmt.Errorf("%s: %s: want %s", name, clip(value), want))
}

func (p *fields) mac(name, value string) mac.Addr {
	a, err := mac.Parse(value)
	if err != nil {
		p.wrong(name, value, "an Ethernet address")
	}
	return a
}

func (p *fields) addr(name, value string) netip.Addr {
	if value == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(value)
	if err != nil {
		p.wrong(name, value, "an IP address")
	}
	return a
}

func (p *fields) number(name, value string) uint64 {
	if value == "" {
		return 0
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		p.wrong(name, value, "a decimal number")
	}
	return n
}

func (p *fields) ifIndex(n int64) int {
	if n < 0 || n > math.MaxInt32 {
		p.wrong("interface-index", strconv.FormatInt(n, 10), "the index of an interface")
		return 0
	}
	return int(n)
}

func (p *fields) property(all map[string]any, name string) string {
	value, found := all[name]
	if !found {
		return ""
	}
	s, ok := value.(string)
	if !ok {
		p.errs = append(p.errs, fmt.Errorf("properties.%s: want a string", name))
	}
	return s
}
