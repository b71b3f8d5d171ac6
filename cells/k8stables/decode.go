package k8stables

import (
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// notForUs says why a well-formed object is not used.
type notForUs string

func (n notForUs) Error() string { return string(n) }

const (
	coreVersion    = "v1"
	networkVersion = "networking.k8s.io/v1"
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
		return nodeRow(&o)
	case "Namespace":
		var o corev1.Namespace
		if err := strict(id, coreVersion, data, &o, &o.ObjectMeta, false, validation.ValidateNamespaceName); err != nil {
			return nil, err
		}
		return namespaceRow(&o), nil
	case "Pod":
		var o corev1.Pod
		if err := strict(id, coreVersion, data, &o, &o.ObjectMeta, true, validation.NameIsDNSSubdomain); err != nil {
			return nil, err
		}
		return podRow(&o, nodeName)
	case "Service":
		var o corev1.Service
		if err := strict(id, coreVersion, data, &o, &o.ObjectMeta, true, validation.NameIsDNSLabel); err != nil {
			return nil, err
		}
		return serviceRow(&o)
	case "NetworkPolicy":
		var o networkingv1.NetworkPolicy
		if err := strict(id, networkVersion, data, &o, &o.ObjectMeta, true, validation.NameIsDNSSubdomain); err != nil {
			return nil, err
		}
		return networkPolicyRow(&o)
	}
	return nil, notForUs("objects of this kind are not read")
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
		return errors.Join(strictErrors[:min(len(strictErrors), maxErrors)]...)
	}
	if namespaced && meta.Namespace == "" {
		meta.Namespace = metav1.NamespaceDefault
	}
	return list(validation.ValidateObjectMeta(meta, namespaced, checkName, field.NewPath("metadata")))
}

// maxErrors bounds how many errors of one object are told.
const maxErrors = 3

func list(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return errs[:min(len(errs), maxErrors)].ToAggregate()
}

// parseAddr reads an address of a field.
func parseAddr(path *field.Path, text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" || addr.Is4In6() {
		return netip.Addr{}, field.Invalid(path, text, "must be an IP address")
	}
	return addr, nil
}

// parseAddrs reads a list of addresses.
func parseAddrs(path *field.Path, texts []string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for i, text := range texts {
		addr, err := parseAddr(path.Index(i), text)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// parsePrefixes reads a list of CIDRs and cuts off their host bits.
func parsePrefixes(path *field.Path, texts []string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for i, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil || prefix.Addr().Is4In6() {
			return nil, field.Invalid(path.Index(i), text, "must be a CIDR")
		}
		prefixes = append(prefixes, prefix.Masked())
	}
	return prefixes, nil
}
