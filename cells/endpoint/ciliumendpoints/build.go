package ciliumendpoints

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// build returns the object of a row.
func build(row *object, node string) *ciliumv2.CiliumEndpoint {
	return &ciliumv2.CiliumEndpoint{
		TypeMeta: metav1.TypeMeta{APIVersion: ciliumv2.GroupVersion.String(), Kind: "CiliumEndpoint"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: row.Namespace, Name: row.Name,
			Labels:          map[string]string{ciliumv2.ManagedByLabel: ciliumv2.ManagedByUs, ciliumv2.NodeLabel: node},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: row.Name, UID: types.UID(row.PodUID)}},
		},
		Status: status(row),
	}
}

func status(row *object) ciliumv2.EndpointStatus {
	s := ciliumv2.EndpointStatus{
		ID: int64(row.EndpointID),
		ExternalIDs: &ciliumv2.EndpointIdentifiers{CNIAttachmentID: row.Attachment, ContainerID: row.ContainerID,
			PodNamespace: row.Namespace, PodName: row.Name, Pod: row.Key()},
		Networking:     &ciliumv2.EndpointNetworking{Addressing: []ciliumv2.AddressPair{{}}},
		State:          row.State,
		ServiceAccount: row.ServiceAccount,
	}
	for _, p := range row.Ports {
		s.NamedPorts = append(s.NamedPorts, ciliumv2.NamedPort{Name: p.Name, Port: p.Number, Protocol: p.Protocol})
	}
	if row.Identity != 0 {
		s.Identity = &ciliumv2.EndpointIdentity{ID: int64(row.Identity), Labels: identities.List(row.Labels)}
	}
	if row.IPv4.IsValid() {
		s.Networking.Addressing[0].IPv4 = row.IPv4.String()
	}
	if row.IPv6.IsValid() {
		s.Networking.Addressing[0].IPv6 = row.IPv6.String()
	}
	if row.Node.IsValid() {
		s.Networking.Node = row.Node.String()
	}
	return s
}

// sortedPorts sorts ports by name and protocol, because the order of a pod's containers must not matter.
func sortedPorts(ports []k8s.ContainerPort) []k8s.ContainerPort {
	return slices.SortedFunc(slices.Values(ports), func(a, b k8s.ContainerPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Number, b.Number))
	})
}

// podOf returns the UID of the pod that owns an object; empty without one.
func podOf(o *ciliumv2.CiliumEndpoint) string {
	for _, owner := range o.OwnerReferences {
		if owner.Kind == "Pod" {
			return string(owner.UID)
		}
	}
	return ""
}
