package k8sobjects

import (
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
)

// Row is the interface of every row of Kubernetes.
type Row interface{ Key() string }

// FromServer converts an object from an API server. It trims the object in place, so the caller must own it. nodeName is the name of this node. An
// error of type [Partly] comes with a row, any other error without. A panic rejects the object: an object of one tenant must not end the agents of all nodes.
func FromServer(object runtime.Object, nodeName string) (row Row, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			row, err = nil, fmt.Errorf("this build of the agent cannot read the object, report it with the object: %v, at %s", fault, origin())
		}
	}()
	meta, ok := object.(metav1.ObjectMetaAccessor)
	if !ok {
		return nil, fmt.Errorf("%T has no metadata", object)
	}
	var written uint64
	if o, ok := object.(*ciliumv2.CiliumEndpoint); ok && o.Labels[ciliumv2.NodeLabel] == nodeName {
		written = ciliumv2.Digest(o) // before Trim removes a part of its input
	}
	if m, ok := meta.GetObjectMeta().(*metav1.ObjectMeta); ok {
		Trim(m)
	}
	switch o := object.(type) {
	case *corev1.Node:
		return checked(&o.ObjectMeta, false, validation.NameIsDNSSubdomain, func() (Row, error) { return Node(o) })
	case *corev1.Pod:
		o.Spec.NodeName, o.Spec.ServiceAccountName = Intern(o.Spec.NodeName), Intern(o.Spec.ServiceAccountName)
		return checked(&o.ObjectMeta, true, validation.NameIsDNSSubdomain, func() (Row, error) { return Pod(o, nodeName) })
	case *corev1.Namespace:
		return checked(&o.ObjectMeta, false, validation.ValidateNamespaceName, func() (Row, error) { return Namespace(o), nil })
	case *corev1.Service:
		return checked(&o.ObjectMeta, true, validation.NameIsDNSLabel, func() (Row, error) { return Service(o) })
	case *discoveryv1.EndpointSlice:
		return checked(&o.ObjectMeta, true, validation.NameIsDNSSubdomain, func() (Row, error) { return EndpointSlice(o) })
	case *networkingv1.NetworkPolicy:
		return checked(&o.ObjectMeta, true, validation.NameIsDNSSubdomain, func() (Row, error) { return NetworkPolicy(o), nil })
	}
	return fromCilium(object, written)
}

// fromCilium converts an object of the group cilium.io; written is the digest of a CiliumEndpoint.
func fromCilium(object runtime.Object, written uint64) (Row, error) {
	switch o := object.(type) {
	case *ciliumv2.CiliumNode:
		return checked(&o.ObjectMeta, false, validation.NameIsDNSSubdomain, func() (Row, error) { return CiliumNode(o), nil })
	case *ciliumv2.CiliumEndpoint:
		o.Annotations = nil // there are many objects, and no reader needs more than the label
		maps.DeleteFunc(o.Labels, func(name, _ string) bool { return name != ciliumv2.NodeLabel })
		return checked(&o.ObjectMeta, true, validation.NameIsDNSSubdomain, func() (Row, error) { return CiliumEndpoint(o, written) })
	case *ciliumv2.CiliumIdentity:
		return checked(&o.ObjectMeta, false, validation.NameIsDNSSubdomain, func() (Row, error) { return CiliumIdentity(o) })
	case *ciliumv2.CiliumNetworkPolicy:
		return checked(&o.ObjectMeta, true, validation.NameIsDNSSubdomain, func() (Row, error) {
			return CiliumPolicy(&o.ObjectMeta, o.Spec, o.Specs)
		})
	case *ciliumv2.CiliumClusterwideNetworkPolicy:
		return checked(&o.ObjectMeta, false, validation.NameIsDNSSubdomain, func() (Row, error) {
			return CiliumPolicy(&o.ObjectMeta, o.Spec, o.Specs)
		})
	case *ciliumv2.CiliumEndpointSlice:
		return checkSlice(o)
	case *ciliumv2.CiliumCIDRGroup:
		return checked(&o.ObjectMeta, false, validation.NameIsDNSSubdomain, func() (Row, error) { return CIDRGroup(o) })
	}
	return nil, NotForUs(fmt.Sprintf("objects of type %T are not read", object))
}

// checked converts an object with well-formed metadata. With an error other than [Partly] it returns no row.
func checked(meta *metav1.ObjectMeta, namespaced bool, name validation.ValidateNameFunc, read func() (Row, error)) (Row, error) {
	if err := Check(meta, namespaced, name); err != nil {
		return nil, err
	}
	row, err := read()
	if partly := Partly(""); err != nil && !errors.As(err, &partly) {
		return nil, err
	}
	return row, err
}
