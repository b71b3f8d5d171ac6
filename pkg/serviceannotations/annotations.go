// Package serviceannotations reads the annotations that choose how a Service is served. Their names and values are Cilium's.
package serviceannotations

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

const prefix = "service.cilium.io/"

// Annotations that have an effect. [Node] is the label of a node as well.
const (
	Type         = prefix + "type"
	Node         = prefix + "node"
	NodeSelector = prefix + "node-selector"
	Algorithm    = prefix + "lb-algorithm"
	Forwarding   = prefix + "forwarding-mode"
	SourceRanges = prefix + "src-ranges-policy"
)

// forwardingSNAT is the only mode of forwarding to backends on other nodes.
const forwardingSNAT = "snat"

const (
	longest         = 300  // bytes of a problem, which may repeat keys and values
	maxProblems     = 8    // annotations that are named; 250 kB hold ten thousand
	longestSelector = 4096 // bytes; 250 kB, which the API server takes, need 0.2 s to be parsed
)

// Wanted holds the options that a Service sets by annotations. The zero value has no options.
type Wanted struct {
	Kind       frontends.Kind // the only kind of frontends; empty for all kinds
	Algorithm  string         // [agentconfig.AlgorithmRandom], [agentconfig.AlgorithmMaglev], or empty for the node's
	DenyRanges bool           // loadBalancerSourceRanges name the clients that are denied
	// Problems describes the annotations without effect, in the order of their keys: the key is unknown, or the value is not supported. After the first 8
	// problems, one more string has the number of the others.
	Problems []string

	node       string // with restricted, the value of the node's label
	restricted bool
	selector   labels.Selector // nil for none; takes precedence over node
}

// Any reports whether there is an annotation that [Parse] reads.
func Any(annotations map[string]string) bool {
	for key := range annotations {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

// Parse reads the annotations of a Service. A value that is not supported is as if the annotation were absent.
func Parse(annotations map[string]string) (w Wanted) {
	more := 0
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		problem := w.read(key, annotations[key])
		switch {
		case problem == "":
		case len(w.Problems) == maxProblems:
			more++
		default:
			w.Problems = append(w.Problems, printable.Short(problem, longest))
		}
	}
	if more > 0 {
		w.Problems = append(w.Problems, fmt.Sprintf("annotations: %d more have no effect", more))
	}
	return w
}

// read applies one annotation, and returns why it has no effect, or nothing.
func (w *Wanted) read(key, value string) (problem string) {
	lower := strings.ToLower(value)
	use := func(values ...string) string {
		last := len(values) - 1
		return fmt.Sprintf("annotation %s=%.50q: use %s or %s", key, value, strings.Join(values[:last], ", "), values[last])
	}
	switch key {
	case Type:
		switch kind := frontends.Kind(value); kind {
		case "", frontends.ClusterIP, frontends.NodePort, frontends.LoadBalancer:
			w.Kind = kind
		default:
			return use(string(frontends.ClusterIP), string(frontends.NodePort), string(frontends.LoadBalancer))
		}
	case Node:
		w.node, w.restricted = value, true
	case NodeSelector:
		if len(value) > longestSelector {
			return fmt.Sprintf("annotation %s=%.50q: longer than %d bytes", key, value, longestSelector)
		}
		selector, err := labels.Parse(value)
		if err != nil {
			return fmt.Errorf("annotation %s=%.50q: %w", key, value, err).Error()
		}
		w.selector = selector
	case Algorithm:
		switch lower {
		case "", agentconfig.AlgorithmRandom, agentconfig.AlgorithmMaglev:
			w.Algorithm = lower
		default:
			return use(agentconfig.AlgorithmRandom, agentconfig.AlgorithmMaglev)
		}
	case Forwarding:
		if lower != "" && lower != forwardingSNAT {
			return fmt.Sprintf("annotation %s=%.50q: there is %s only", key, value, forwardingSNAT)
		}
	case SourceRanges:
		switch lower {
		case "", "allow":
		case "deny":
			w.DenyRanges = true
		default:
			return use("allow", "deny")
		}
	default:
		return fmt.Sprintf("annotation %s: not supported", key)
	}
	return ""
}

// ChoosesNodes reports whether labels of a node decide about the Service.
func (w *Wanted) ChoosesNodes() bool { return w.restricted || w.selector != nil }

// OnNode reports whether a node with these labels serves the Service.
func (w *Wanted) OnNode(of map[string]string) bool {
	if w.selector != nil {
		return w.selector.Matches(labels.Set(of))
	}
	return !w.restricted || of[Node] == w.node
}
