package policytest

import (
	"maps"
	"slices"
	"strings"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// serviceNames are names of Services; no Service has the last one.
var serviceNames = []string{"db", "web", "nobody-makes-it"}

// service makes a Service: most have a selector.
func (r *random) service(namespace, name string) *k8s.Service {
	s := &k8s.Service{Namespace: namespace, Name: name, Type: "ClusterIP"}
	if r.oneIn(8) {
		s.Type = "ExternalName"
	}
	if r.oneIn(8) {
		return s
	}
	selector := r.labels(podLabels, 2)
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		pairs = append(pairs, key+"="+selector[key])
	}
	s.Selects = strings.Join(pairs, ",")
	return s
}

// service finds a Service of the world.
func (w *World) service(name policy.ServiceName) policy.Service {
	i := slices.IndexFunc(w.Services, func(s *k8s.Service) bool { return s.Namespace == name.Namespace && s.Name == name.Name })
	if i < 0 {
		return policy.Service{}
	}
	return policy.ServiceOf(w.Services[i])
}

// toService is an item of toServices. Some have no namespace, and a few choose by labels, which is not supported.
func (r *random) toService() object {
	if r.oneIn(12) {
		return object{"k8sServiceSelector": object{"selector": object{"matchLabels": object{"app": "web"}}}}
	}
	of := object{"serviceName": pick(r, serviceNames...)}
	if !r.oneIn(3) {
		of["namespace"] = pick(r, namespaces...)
	}
	return object{"k8sService": of}
}
