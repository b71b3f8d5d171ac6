package manifests

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/printable"
)

const (
	coreVersion    = "v1"
	networkVersion = "networking.k8s.io/v1"

	discoveryVersion = "discovery.k8s.io/v1"
)

// decode reads an object strictly, as an API server does: unknown and duplicate fields, and invalid names, labels and annotations are errors.
func decode(id identity, data []byte, nodeName string) (k8sobjects.Row, error) {
	switch id.Kind {
	case "":
		return nil, errors.New("kind: Required value")
	case "Node":
		var o corev1.Node
		if err := strict(id, coreVersion, data, &o, &o.ObjectMeta, false, validation.NameIsDNSSubdomain); err != nil {
			return nil, err
		}
		return k8sobjects.Node(&o)
	case "Namespace":
		var o corev1.Namespace
		if err := strict(id, coreVersion, data, &o, &o.ObjectMeta, false, validation.ValidateNamespaceName); err != nil {
			return nil, err
		}
		return k8sobjects.Namespace(&o), nil
	case "Pod":
		var o corev1.Pod
		if err := strict(id, coreVersion, data, &o, &o.ObjectMeta, true, validation.NameIsDNSSubdomain); err != nil {
			return nil, err
		}
		return k8sobjects.Pod(&o, nodeName)
	case "Service":
		var o corev1.Service
		if err := strict(id, coreVersion, data, &o, &o.ObjectMeta, true, validation.NameIsDNSLabel); err != nil {
			return nil, err
		}
		return k8sobjects.Service(&o)
	case "NetworkPolicy":
		return decodePolicy(id, data)
	case "EndpointSlice":
		var o discoveryv1.EndpointSlice
		if err := strict(id, discoveryVersion, data, &o, &o.ObjectMeta, true, validation.NameIsDNSSubdomain); err != nil {
			return nil, err
		}
		return k8sobjects.EndpointSlice(&o)
	}
	return decodeCilium(id, data, nodeName)
}

// decodePolicy reads a NetworkPolicy. Unknown fields make the policy invalid and do not remove it: removal would allow the traffic that it denies.
func decodePolicy(id identity, data []byte) (k8sobjects.Row, error) {
	var o networkingv1.NetworkPolicy
	err := strict(id, networkVersion, data, &o, &o.ObjectMeta, true, validation.NameIsDNSSubdomain)
	unknown := &unknownFields{}
	if err != nil && !errors.As(err, &unknown) {
		return nil, err
	}
	row := k8sobjects.NetworkPolicy(&o)
	if err != nil && row.Invalid == "" {
		row.Invalid = printable.Short(err.Error(), maxText)
	}
	return row, nil
}

// decodeCilium reads an object of the group cilium.io. Our types of the group omit unused fields, so unknown fields are no errors.
func decodeCilium(id identity, data []byte, nodeName string) (k8sobjects.Row, error) {
	var object runtime.Object
	namespaced := false
	switch id.Kind {
	case "CiliumNode":
		object = &ciliumv2.CiliumNode{}
	case "CiliumEndpoint":
		object, namespaced = &ciliumv2.CiliumEndpoint{}, true
	case "CiliumIdentity":
		object = &ciliumv2.CiliumIdentity{}
	case "CiliumNetworkPolicy":
		object, namespaced = &ciliumv2.CiliumNetworkPolicy{}, true
	case "CiliumClusterwideNetworkPolicy":
		object = &ciliumv2.CiliumClusterwideNetworkPolicy{}
	case "CiliumCIDRGroup":
		object = &ciliumv2.CiliumCIDRGroup{}
	default:
		return nil, k8sobjects.NotForUs("objects of this kind are not read")
	}
	if id.APIVersion != ciliumv2.GroupVersion.String() {
		return nil, fmt.Errorf("apiVersion: Unsupported value %q: must be %s", id.APIVersion, ciliumv2.GroupVersion)
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, object); err != nil {
		return nil, err
	}
	if meta, ok := object.(metav1.Object); ok && namespaced && meta.GetNamespace() == "" {
		meta.SetNamespace(metav1.NamespaceDefault)
	}
	return k8sobjects.FromServer(object, nodeName)
}

// strict decodes data into object and checks its metadata, which is part of object. When the only faults are unknown or duplicate fields, the error is of
// type [unknownFields].
func strict(id identity, version string, data []byte, object any, meta *metav1.ObjectMeta, namespaced bool,
	checkName validation.ValidateNameFunc) error {
	if id.APIVersion != version {
		return fmt.Errorf("apiVersion: Unsupported value %q: must be %s", id.APIVersion, version)
	}
	unknown, err := kjson.UnmarshalStrict(data, object)
	if err != nil {
		return err
	}
	if namespaced && meta.Namespace == "" {
		meta.Namespace = metav1.NamespaceDefault
	}
	err = k8sobjects.Check(meta, namespaced, checkName)
	fields := errors.Join(unknown[:min(len(unknown), k8sobjects.MaxErrors)]...)
	if err == nil && fields != nil {
		return &unknownFields{fields}
	}
	return errors.Join(fields, err)
}

// unknownFields names the unknown or duplicate fields of an object.
type unknownFields struct{ error }
