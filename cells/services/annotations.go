package services

import (
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Annotations by which a Service says what shall become of it. Their names and values are Cilium's.
const (
	annotationType       = "service.cilium.io/type"
	annotationNode       = "service.cilium.io/node"
	annotationAlgorithm  = "service.cilium.io/lb-algorithm"
	annotationForwarding = "service.cilium.io/forwarding-mode"
)

// forwardingSNAT is the only way in which clients outside come to backends on other nodes.
const forwardingSNAT = "snat"

// annotated reads what a Service asks by annotations. What cannot be done is a problem, and is as if it were not asked.
func (w *world) annotated(m *model, s *k8s.Service) (only frontends.Kind) {
	m.maglev = w.maglev(m, s.Annotations[annotationAlgorithm])
	if mode := s.Annotations[annotationForwarding]; mode != "" && mode != forwardingSNAT {
		m.problem("annotation %s=%.50q: there is %s only", annotationForwarding, mode, forwardingSNAT)
	}
	switch kind := frontends.Kind(s.Annotations[annotationType]); kind {
	case "", frontends.ClusterIP, frontends.NodePort, frontends.LoadBalancer:
		return kind
	default:
		m.problem("annotation %s=%.50q: use %s, %s or %s", annotationType, string(kind), frontends.ClusterIP, frontends.NodePort, frontends.LoadBalancer)
		return ""
	}
}

// maglev tells whether clients outside choose by a table.
func (w *world) maglev(m *model, algorithm string) bool {
	switch algorithm {
	case "":
	case settings.AlgorithmRandom:
		return false
	case settings.AlgorithmMaglev:
		if w.agent.MaglevTables() {
			return true
		}
		m.problem("annotation %s=%s: set --bpf-lb-algorithm-annotation, which makes room for tables", annotationAlgorithm, algorithm)
	default:
		m.problem("annotation %s=%.50q: use %s or %s", annotationAlgorithm, algorithm, settings.AlgorithmRandom, settings.AlgorithmMaglev)
	}
	return w.agent.Maglev
}
