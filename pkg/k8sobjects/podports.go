package k8sobjects

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// PodPorts are the container ports of a pod that have a name. Where containers share one, the first counts, as for services.
// Sidecars come after the containers; other init containers are gone when somebody connects.
func PodPorts(spec *corev1.PodSpec) (list []k8s.ContainerPort) {
	add := func(ports []corev1.ContainerPort) {
		for _, p := range ports {
			protocol, err := protocol(nil, p.Protocol)
			if err != nil || p.Name == "" || p.ContainerPort <= 0 || p.ContainerPort > 65535 {
				continue // nothing can be connected to it by name
			}
			taken := slices.ContainsFunc(list, func(o k8s.ContainerPort) bool { return o.Name == p.Name && o.Protocol == protocol })
			if !taken {
				list = append(list, k8s.ContainerPort{Name: Intern(p.Name), Protocol: Intern(protocol), Number: uint16(p.ContainerPort)})
			}
		}
	}
	for _, c := range running(spec) {
		add(c.Ports)
	}
	return list
}

// running are the containers and the sidecars.
func running(spec *corev1.PodSpec) (list []*corev1.Container) {
	for i := range spec.Containers {
		list = append(list, &spec.Containers[i])
	}
	for i := range spec.InitContainers {
		if policy := spec.InitContainers[i].RestartPolicy; policy != nil && *policy == corev1.ContainerRestartPolicyAlways {
			list = append(list, &spec.InitContainers[i])
		}
	}
	return list
}

// hostPorts are the ports of the node that a pod wants. Of the same one the first counts. What no packet can have is left out: the
// pod has labels and addresses all the same.
func hostPorts(spec *corev1.PodSpec) (list []k8s.HostPort) {
	for _, c := range running(spec) {
		for _, p := range c.Ports {
			protocol, err := protocol(nil, p.Protocol)
			if err != nil || p.HostPort <= 0 || p.HostPort > 65535 || p.ContainerPort <= 0 || p.ContainerPort > 65535 {
				continue
			}
			h := k8s.HostPort{Protocol: Intern(protocol), Port: uint16(p.HostPort), Container: uint16(p.ContainerPort)}
			if p.HostIP != "" {
				if h.Addr, err = parseAddr(nil, p.HostIP); err != nil {
					continue
				}
			}
			if h.Addr.IsValid() && h.Addr.IsUnspecified() {
				h.Addr = netip.Addr{}
			}
			taken := slices.ContainsFunc(list, func(o k8s.HostPort) bool {
				return o.Addr == h.Addr && o.Protocol == h.Protocol && o.Port == h.Port
			})
			if !taken {
				list = append(list, h)
			}
		}
	}
	return list
}
