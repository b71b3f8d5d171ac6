package k8sobjects

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/waggle-net/waggle/pkg/ciliumv2"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// mostPorts bounds what another node may say of one pod.
const mostPorts = 64

// ciliumPorts reads the named ports of a CiliumEndpoint. It leaves out what no rule can mean: a port without name or
// number, of a protocol without ports, and one whose name and protocol are taken.
func ciliumPorts(ports []ciliumv2.NamedPort) (list []k8s.ContainerPort) {
	for _, p := range ports {
		protocol := p.Protocol
		switch protocol {
		case "":
			protocol = string(corev1.ProtocolTCP)
		case string(corev1.ProtocolTCP), string(corev1.ProtocolUDP), string(corev1.ProtocolSCTP):
		default:
			continue
		}
		taken := slices.ContainsFunc(list, func(o k8s.ContainerPort) bool { return o.Name == p.Name && o.Protocol == protocol })
		if p.Name != "" && p.Port != 0 && !taken && len(list) < mostPorts {
			list = append(list, k8s.ContainerPort{Name: Intern(p.Name), Protocol: Intern(protocol), Number: p.Port})
		}
	}
	return list
}
