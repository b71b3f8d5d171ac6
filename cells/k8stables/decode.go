package k8stables

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

	"github.com/waggle-net/waggle/cells/k8stables/objects"
	"github.com/waggle-net/waggle/pkg/ciliumv2"
)

const (
	coreVersion    = "v1"
	networkVersion = "networking.k8s.io/v1"

	discoveryVersion = "discovery.k8s.io/v1"
)

// decode reads an object strictly, as an API server would: unknown and doubled fields, bad names, labels and
// annotations are errors.
func decode(id identity, data []byte, nodeName string) (any, error) {
	switch id.Kind {
	case "":
		return nil, errors.New("kind: Required value")
	case "Node":
		var o corev1.Node
		if err := strict(id, coreVersion, data, &o, &o.ObjectMeta, false, validation.NameIsDNSSubdomain); err != nil {
			return nil, err
		}
		return objects.Node(&o)
	case "Namespace":
		var o corev1.Namespace
		if err := strict(id, coreVersion, data, &o, &o.ObjectMeta, false, validation.ValidateNamespaceName); err != nil {
			return nil, err
		}
		return objects.Namespace(&o), nil
	case "Pod":
		var o corev1.Pod
		if err := strict(id, coreVersion, data, &o, &o.ObjectMeta, true, validation.NameIsDNSSubdomain); err != nil {
			return nil, err
		}
		return objects.Pod(&o, nodeName)
	case "Service":
		var o corev1.Service
		if err := strict(id, coreVersion, data, &o, &o.ObjectMeta, true, validation.NameIsDNSLabel); err != nil {
			return nil, err
		}
		return objects.Service(&o)
	case "NetworkPolicy":
		var o networkingv1.NetworkPolicy
		if err := strict(id, networkVersion, data, &o, &o.ObjectMeta, true, validation.NameIsDNSSubdomain); err != nil {
			return nil, err
		}
		return objects.NetworkPolicy(&o)
	case "EndpointSlice":
		var o discoveryv1.EndpointSlice
		if err := strict(id, discoveryVersion, data, &o, &o.ObjectMeta, true, validation.NameIsDNSSubdomain); err != nil {
			return nil, err
		}
		return objects.EndpointSlice(&o)
	case "Ingress":
		var o networkingv1.Ingress
		if err := strict(id, networkVersion, data, &o, &o.ObjectMeta, true, validation.NameIsDNSSubdomain); err != nil {
			return nil, err
		}
		return objects.Ingress(&o), nil
	}
	return decodeCilium(id, data, nodeName)
}

// decodeCilium reads an object of the group cilium.io. Our types of it leave out what we do not read, so unknown fields are
// no errors.
func decodeCilium(id identity, data []byte, nodeName string) (any, error) {
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
	default:
		return nil, objects.NotForUs("objects of this kind are not read")
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
	return objects.FromServer(object, nodeName)
}

// strict fills object and checks its metadata, which lies inside it.
func strict(id identity, version string, data []byte, object any, meta *metav1.ObjectMeta, namespaced bool,
	checkName validation.ValidateNameFunc) error {
	if id.APIVersion != version {
		return fmt.Errorf("apiVersion: Unsupported value %q: must be %s", id.APIVersion, version)
	}
	strictErrors, err := kjson.UnmarshalStrict(data, object)
	if err != nil {
		return err
	}
	if len(strictErrors) > 0 {
		return errors.Join(strictErrors[:min(len(strictErrors), objects.MaxErrors)]...)
	}
	if namespaced && meta.Namespace == "" {
		meta.Namespace = metav1.NamespaceDefault
	}
	return objects.Check(meta, namespaced, checkName)
}
