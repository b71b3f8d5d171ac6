package k8sobjects

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Node converts a Node. It skips unusable addresses, with an error of type [Partly]; node names are not validated.
func Node(o *corev1.Node) (*k8s.Node, error) {
	row := &k8s.Node{Name: o.Name, UID: string(o.UID), Created: created(&o.ObjectMeta), Labels: o.Labels, Annotations: o.Annotations,
		PodCIDR: o.Spec.PodCIDR, PodCIDRs: o.Spec.PodCIDRs}
	for _, taint := range o.Spec.Taints {
		row.TaintKeys = append(row.TaintKeys, taint.Key)
	}
	for _, condition := range o.Status.Conditions {
		switch condition.Type {
		case corev1.NodeNetworkUnavailable:
			row.NetworkUnavailable = string(condition.Status)
		case k8s.PathsCondition:
			row.PathsDegraded = string(condition.Status)
		}
	}
	var without unusable
	path := field.NewPath("status", "addresses")
	for i, a := range o.Status.Addresses {
		at := path.Index(i)
		switch a.Type {
		case corev1.NodeInternalIP, corev1.NodeExternalIP:
			if _, err := parseAddr(at.Child("address"), a.Address); err != nil {
				without.add(err)
				continue
			}
		case corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS:
			if a.Address == "" { // cloud providers write it for a missing name
				continue
			}
		default:
			without.add(field.NotSupported(at.Child("type"), a.Type, []corev1.NodeAddressType{
				corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName, corev1.NodeInternalDNS,
				corev1.NodeExternalDNS}))
			continue
		}
		row.Addresses = append(row.Addresses, k8s.NodeAddress{Type: string(a.Type), Address: a.Address})
	}
	return row, without.err()
}

// Namespace converts a Namespace.
func Namespace(o *corev1.Namespace) *k8s.Namespace {
	return &k8s.Namespace{Name: o.Name, UID: string(o.UID), Labels: o.Labels, Annotations: o.Annotations}
}

// Pod converts a Pod. It accepts pods of this node and pods without a node name, so that manifests for one node need not repeat it.
func Pod(o *corev1.Pod, nodeName string) (*k8s.Pod, error) {
	spec := field.NewPath("spec")
	if name := o.Spec.NodeName; name != "" {
		if err := subdomain(spec.Child("nodeName"), name); err != nil {
			return nil, err
		}
		if name != nodeName {
			return nil, NotForUs(fmt.Sprintf("a pod of node %s; this is %s", name, nodeName))
		}
	}
	if name := o.Spec.ServiceAccountName; name != "" {
		if err := subdomain(spec.Child("serviceAccountName"), name); err != nil {
			return nil, err
		}
	}
	row := &k8s.Pod{Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), NodeName: o.Spec.NodeName,
		StaticUID: o.Annotations[corev1.MirrorPodAnnotationKey], ServiceAccount: o.Spec.ServiceAccountName, HostNetwork: o.Spec.HostNetwork, Labels: o.Labels,
		Annotations: o.Annotations, Phase: string(o.Status.Phase), Ports: PodPorts(&o.Spec),
		Created: created(&o.ObjectMeta)}
	texts := make([]string, 0, len(o.Status.PodIPs))
	for _, ip := range o.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	if len(texts) == 0 && o.Status.PodIP != "" {
		texts = append(texts, o.Status.PodIP)
	}
	var err error
	row.PodIPs, err = parseAddrs(field.NewPath("status", "podIPs"), texts)
	if !row.HostNetwork { // its ports are ports of the node already
		row.HostPorts = hostPorts(&o.Spec)
	}
	return row, err
}

func subdomain(path *field.Path, name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return field.Invalid(path, name, problems[0])
	}
	return nil
}

// protocol applies the default and rejects protocols that packets cannot have.
func protocol(path *field.Path, p corev1.Protocol) (string, error) {
	switch p {
	case "":
		return string(corev1.ProtocolTCP), nil
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		return Intern(string(p)), nil
	}
	return "", field.NotSupported(path, p, []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP})
}

// port validates the number of a field; zero is valid if the field may be empty.
func port(path *field.Path, n int32, mayBeZero bool) (uint16, error) {
	if n == 0 && mayBeZero {
		return 0, nil
	}
	if problems := validation.IsValidPortNum(int(n)); len(problems) > 0 {
		return 0, field.Invalid(path, n, problems[0])
	}
	return uint16(n), nil
}

// loadBalancerIPs returns the addresses that a load balancer assigned to a service, except addresses with ipMode Proxy: packets must reach the load
// balancer itself.
func loadBalancerIPs(o *corev1.Service) (texts []string) {
	for _, ingress := range o.Status.LoadBalancer.Ingress {
		if mode := ingress.IPMode; ingress.IP != "" && (mode == nil || *mode != corev1.LoadBalancerIPModeProxy) {
			texts = append(texts, ingress.IP)
		}
	}
	return texts
}
