package policytest

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// serviceNames are names of Services; no Service has the last one.
var serviceNames = []string{"db", "web", "missing"}

// serviceLabels are labels of Services.
var serviceLabels = [][]string{{"plan", "gold", "basic"}, {"owner", "a", "b"}}

// pairs formats labels as in rows of Services.
func pairs(labels map[string]string) string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, key+"="+labels[key])
	}
	return strings.Join(list, ",")
}

// service makes a Service: most have a selector.
func (r *random) service(namespace, name string) *k8s.Service {
	s := &k8s.Service{Namespace: namespace, Name: name, Type: "ClusterIP", Labelled: pairs(r.labels(serviceLabels, r.IntN(3)))}
	if r.oneIn(8) {
		s.Type = "ExternalName"
	}
	if r.oneIn(3) {
		return s
	}
	s.Selects = pairs(r.labels(podLabels, 2))
	return s
}

// slices makes up to two slices of a Service, with addresses of pods and of other peers.
func (w *World) slices(r *random, s *k8s.Service) (all []*k8s.EndpointSlice) {
	peers := w.Peers()
	for range r.IntN(3) {
		slice := &k8s.EndpointSlice{Namespace: s.Namespace, Service: s.Name}
		slice.Endpoints = some(r, 4, func() k8s.SliceEndpoint {
			return k8s.SliceEndpoint{Addrs: []netip.Addr{pick(r, peers...).Addr}, Ready: r.oneIn(2)}
		})
		all = append(all, slice)
	}
	return all
}

// service finds a Service of the world.
func (w *World) service(name policy.ServiceName) policy.Service {
	i := slices.IndexFunc(w.Services, func(s *k8s.Service) bool { return s.Namespace == name.Namespace && s.Name == name.Name })
	if i < 0 {
		return policy.Service{}
	}
	return policy.ServiceOf(w.Services[i]).WithAddresses(func(yield func(*k8s.EndpointSlice) bool) {
		for _, slice := range w.Slices {
			if slice.Namespace == name.Namespace && slice.Service == name.Name && !yield(slice) {
				return
			}
		}
	})
}

// servicesIn yields the Services in a namespace of the world.
func (w *World) servicesIn(namespace string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, s := range w.Services {
			if s.Namespace == namespace && !yield(s.Name, s.Labelled) {
				return
			}
		}
	}
}

// toService is an item of toServices. Some have no namespace, and some choose by labels.
func (r *random) toService() object {
	field, of := "k8sService", object{"serviceName": pick(r, serviceNames...)}
	if r.oneIn(3) {
		field, of = "k8sServiceSelector", object{"selector": groupSelector(r.selector(serviceLabels))}
	}
	if !r.oneIn(3) {
		of["namespace"] = pick(r, namespaces...)
	}
	return object{field: of}
}
