package k8sobjects

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// EndpointSlice reads an EndpointSlice. One of names instead of addresses has no endpoints.
func EndpointSlice(o *discoveryv1.EndpointSlice) (*k8s.EndpointSlice, error) {
	row := &k8s.EndpointSlice{Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), AddressType: Intern(string(o.AddressType)),
		Service: partOf(o.Name, o.Labels[discoveryv1.LabelServiceName])}
	switch o.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
	case discoveryv1.AddressTypeFQDN:
		return row, nil
	default:
		return nil, field.NotSupported(field.NewPath("addressType"), o.AddressType,
			[]discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN})
	}
	for i := range o.Ports {
		p, err := slicePort(field.NewPath("ports").Index(i), &o.Ports[i])
		if err != nil {
			return nil, err
		}
		row.Ports = append(row.Ports, p)
	}
	for i := range o.Endpoints {
		e, err := sliceEndpoint(field.NewPath("endpoints").Index(i), &o.Endpoints[i], o.AddressType)
		if err != nil {
			return nil, err
		}
		row.Endpoints = append(row.Endpoints, e)
	}
	return row, nil
}

// partOf is a text, in the memory of a longer one that begins with it: names of slices begin with that of their service.
func partOf(longer, text string) string {
	if strings.HasPrefix(longer, text) {
		return longer[:len(text)]
	}
	return text
}

func slicePort(path *field.Path, o *discoveryv1.EndpointPort) (p k8s.SlicePort, err error) {
	if o.Name != nil {
		p.Name = Intern(*o.Name)
	}
	var asked corev1.Protocol
	if o.Protocol != nil {
		asked = *o.Protocol
	}
	if p.Protocol, err = protocol(path.Child("protocol"), asked); err != nil || o.Port == nil {
		return p, err
	}
	p.Protocol = Intern(p.Protocol)
	p.Port, err = port(path.Child("port"), *o.Port, false)
	return p, err
}

func sliceEndpoint(path *field.Path, o *discoveryv1.Endpoint, family discoveryv1.AddressType) (e k8s.SliceEndpoint, err error) {
	if e.Addrs, err = parseAddrs(path.Child("addresses"), o.Addresses); err != nil {
		return e, err
	}
	for i, addr := range e.Addrs {
		if addr.Is4() != (family == discoveryv1.AddressTypeIPv4) {
			return e, field.Invalid(path.Child("addresses").Index(i), addr.String(), "must be an "+string(family)+" address")
		}
	}
	is := func(p *bool, otherwise bool) bool {
		if p == nil {
			return otherwise
		}
		return *p
	}
	text := func(p *string) string {
		if p == nil {
			return ""
		}
		return Intern(*p)
	}
	e.Ready, e.Terminating = is(o.Conditions.Ready, true), is(o.Conditions.Terminating, false)
	e.Serving = is(o.Conditions.Serving, e.Ready)
	e.NodeName, e.Zone = text(o.NodeName), text(o.Zone)
	if o.Hints != nil {
		for _, zone := range o.Hints.ForZones {
			e.ForZones = append(e.ForZones, Intern(zone.Name))
		}
		for _, node := range o.Hints.ForNodes {
			e.ForNodes = append(e.ForNodes, Intern(node.Name))
		}
	}
	if t := o.TargetRef; t != nil && t.Kind == "Pod" {
		e.Pod = t.Namespace + "/" + t.Name
	}
	return e, nil
}
