package k8sobjects

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// EndpointSlice converts an EndpointSlice. A slice of DNS names has no endpoints. It skips unusable addresses and ports, with an error of type
// [Partly].
func EndpointSlice(o *discoveryv1.EndpointSlice) (*k8s.EndpointSlice, error) {
	if _, headless := o.Labels[corev1.IsHeadlessService]; headless {
		return nil, NotForUs("a slice with the label " + corev1.IsHeadlessService)
	}
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
	var without unusable
	row.Ports, row.Endpoints = slices.Grow(row.Ports, len(o.Ports)), slices.Grow(row.Endpoints, len(o.Endpoints))
	for i := range o.Ports {
		p, err := slicePort(field.NewPath("ports").Index(i), &o.Ports[i])
		if err != nil {
			without.add(err)
			continue
		}
		row.Ports = append(row.Ports, p)
	}
	for i := range o.Endpoints {
		if e := sliceEndpoint(field.NewPath("endpoints").Index(i), &o.Endpoints[i], o.AddressType, &without); len(e.Addrs) > 0 {
			row.Endpoints = append(row.Endpoints, e)
		}
	}
	return row, without.err()
}

// partOf returns text in the memory of longer if longer begins with it: names of slices begin with the name of their service.
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
	p.Port, err = port(path.Child("port"), *o.Port, false)
	return p, err
}

func sliceEndpoint(path *field.Path, o *discoveryv1.Endpoint, family discoveryv1.AddressType, without *unusable) (e k8s.SliceEndpoint) {
	for i, text := range o.Addresses {
		at := path.Child("addresses").Index(i)
		addr, err := parseAddr(at, text)
		if err == nil && addr.Is4() != (family == discoveryv1.AddressTypeIPv4) {
			err = field.Invalid(at, text, "must be an "+string(family)+" address")
		}
		if err != nil {
			without.add(err)
			continue
		}
		e.Addrs = append(e.Addrs, addr)
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
	e.Serving = is(o.Conditions.Serving, true)
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
	return e
}
