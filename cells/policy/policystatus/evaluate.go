package policystatus

import (
	"fmt"
	"strings"

	"github.com/cilium/statedb/reconciler"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Reasons of the condition, in addition to the reasons of [policy.Problem].
const (
	reasonEnforceable = "Enforceable"
	reasonAudit       = "Audit"
)

const (
	mostProblems = 10
	longest      = 300 // maximum bytes of one problem, which may quote the object
)

// evaluate makes the statement about an object. It trims the object, so the caller must own it. For objects of other types it returns an error. For a policy that
// refers to Services it only prepares the row while these are not known (nil).
func evaluate(object runtime.Object, env policy.Environment, known *knownServices) (*statement, error) {
	ref, meta, conditions := describe(object)
	if meta == nil {
		return nil, fmt.Errorf("unexpected object of type %T in a list of policies", object)
	}
	if known != nil {
		env.Services, env.ServicesIn = known.find, known.in
	}
	s := &statement{Ref: ref, UID: string(meta.UID)}
	row, err := k8sobjects.FromServer(object, "")
	switch row := row.(type) {
	case *k8s.NetworkPolicy:
		s.setFrom(policy.FromKubernetes(row, env))
	case *cilium.Policy:
		p := policy.FromCilium(row, env)
		if s.services, s.namespaces = p.Services, p.ServiceNamespaces; s.refersToServices() {
			s.text, s.size = digest(row), len(row.Spec)+len(row.Specs)
			if known == nil {
				s.groups = p.Groups
				s.retract()
				return s, nil
			}
			s.meaning = known.meaningOf(s)
		}
		s.setFrom(p)
	default:
		s.setFrom(&policy.Policy{Problems: []policy.Problem{{Path: "metadata", Reason: policy.ReasonInvalid, Invalid: true,
			Message: fmt.Sprintf("no agent can read the object: %v", err)}}})
	}
	s.Status = reconciler.StatusPending()
	if s.Valid == valid && (ref.Kind == policy.Kubernetes || s.matchesAny(conditions)) {
		s.Status = reconciler.StatusDone() // nothing must be written
	}
	return s, nil
}

// describe returns the reference, the metadata and the conditions of an object. The metadata are nil for objects of other types.
func describe(object runtime.Object) (policy.Ref, *metav1.ObjectMeta, []ciliumv2.PolicyCondition) {
	switch o := object.(type) {
	case *networkingv1.NetworkPolicy:
		return policy.Ref{Kind: policy.Kubernetes, Namespace: o.Namespace, Name: o.Name}, &o.ObjectMeta, nil
	case *ciliumv2.CiliumNetworkPolicy:
		return policy.Ref{Kind: policy.Cilium, Namespace: o.Namespace, Name: o.Name}, &o.ObjectMeta, o.Status.Conditions
	case *ciliumv2.CiliumClusterwideNetworkPolicy:
		return policy.Ref{Kind: policy.Clusterwide, Name: o.Name}, &o.ObjectMeta, o.Status.Conditions
	}
	return policy.Ref{}, nil, nil
}

func (s *statement) matchesAny(conditions []ciliumv2.PolicyCondition) bool {
	for _, c := range conditions {
		if s.matches(c) {
			return true
		}
	}
	return false
}

// setFrom sets the statement according to a parsed policy.
func (s *statement) setFrom(p *policy.Policy) {
	s.groups = p.Groups
	switch {
	case len(p.Problems) > 0:
		s.Valid, s.Reason, s.Message = invalid, reasonOf(p.Problems), messageOf(p.Problems)
	case p.Audit:
		s.Valid, s.Reason = valid, reasonAudit
		s.Message = "The policy is in audit mode: what it would deny is counted and reported, and not denied."
	default:
		// This role does not know the flags of the nodes.
		s.Valid, s.Reason = valid, reasonEnforceable
		s.Message = "All of the policy can be enforced. A node whose flags switch policies off says so in waggle policy list."
	}
}

// reasonOf returns the reason of the first mistake, which the author of the policy can correct, or else of the first problem.
func reasonOf(problems []policy.Problem) string {
	for _, p := range problems {
		if p.Invalid {
			return p.Reason
		}
	}
	return problems[0].Reason
}

func messageOf(problems []policy.Problem) string {
	var lines []string
	for i, p := range problems {
		if i == mostProblems {
			lines = append(lines, fmt.Sprintf("and %d more", len(problems)-i))
			break
		}
		lines = append(lines, printable.Short(p.Path+": "+p.Message, longest))
	}
	return strings.Join(lines, "\n")
}
