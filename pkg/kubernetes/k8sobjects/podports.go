package k8sobjects

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// PodPorts returns the named container ports of a pod. If containers share a name, the first counts, as for services. Sidecars follow the containers;
// other init containers have ended before clients connect.
func PodPorts(spec *corev1.PodSpec) (list []k8s.ContainerPort) {
	taken := map[k8s.ContainerPort]bool{} // by name and protocol
	for _, c := range running(spec) {
		for _, p := range c.Ports {
			protocol, err := protocol(nil, p.Protocol)
			if err != nil || p.Name == "" || p.ContainerPort <= 0 || p.ContainerPort > 65535 {
				continue // clients cannot connect to it by name
			}
			port := k8s.ContainerPort{Name: Intern(p.Name), Protocol: Intern(protocol)}
			if !taken[port] {
				taken[port] = true
				port.Number = uint16(p.ContainerPort)
				list = append(list, port)
			}
		}
	}
	return list
}

// running returns the containers and the sidecars.
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

// hostPorts returns the host ports of a pod. Of equal ports the first counts. Invalid ports are skipped, because the pod's labels and addresses are
// needed in any case.
func hostPorts(spec *corev1.PodSpec) (list []k8s.HostPort) {
	taken := map[k8s.HostPort]bool{} // by address, protocol and port
	for _, c := range running(spec) {
		for _, p := range c.Ports {
			protocol, err := protocol(nil, p.Protocol)
			if err != nil || p.HostPort <= 0 || p.HostPort > 65535 || p.ContainerPort <= 0 || p.ContainerPort > 65535 {
				continue
			}
			h := k8s.HostPort{Protocol: Intern(protocol), Port: uint16(p.HostPort)}
			if p.HostIP != "" {
				if h.Addr, err = parseAddr(nil, p.HostIP); err != nil {
					continue
				}
			}
			if h.Addr.IsValid() && h.Addr.IsUnspecified() {
				h.Addr = netip.Addr{}
			}
			if !taken[h] {
				taken[h] = true
				h.Container = uint16(p.ContainerPort)
				list = append(list, h)
			}
		}
	}
	return list
}
