package k8sobjects

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// mostPorts limits the ports that another node may claim for one pod.
const mostPorts = 64

// ciliumPorts converts the named ports of a CiliumEndpoint. It skips ports that no rule can match: without name or number, of a protocol without ports,
// or with the same name and protocol as another.
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
