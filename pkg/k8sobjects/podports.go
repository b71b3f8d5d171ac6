package k8sobjects

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// podPorts are the container ports of a pod that have a name. Where containers share one, the first counts, as for services.
// Sidecars come after the containers; other init containers are gone when somebody connects.
func podPorts(spec *corev1.PodSpec) (list []k8s.ContainerPort) {
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
	for i := range spec.Containers {
		add(spec.Containers[i].Ports)
	}
	for i := range spec.InitContainers {
		if policy := spec.InitContainers[i].RestartPolicy; policy != nil && *policy == corev1.ContainerRestartPolicyAlways {
			add(spec.InitContainers[i].Ports)
		}
	}
	return list
}
