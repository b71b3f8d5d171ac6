package policymaps

import (
	"fmt"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/policy/policycompiler"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

func (in *inputs) join(ep *endpoints.Endpoint) {
	in.subjects[ep.ID] = ep
	name := ep.PodName()
	if in.ofPod[name] == nil {
		in.ofPod[name] = map[uint16]bool{}
	}
	in.ofPod[name][ep.ID] = true
}

func (in *inputs) leavePod(ep *endpoints.Endpoint) {
	name := ep.PodName()
	if delete(in.ofPod[name], ep.ID); len(in.ofPod[name]) == 0 {
		delete(in.ofPod, name)
	}
}

// followLabels updates the endpoints whose pods or namespaces have changed.
func (in *inputs) followLabels(txn statedb.ReadTxn, changed *statedb.WatchSet) {
	before, namespaces := in.listed, map[string]bool{}
	in.listed = sources.Listed(txn, in.Sources, in.Pods.Name(), in.Namespaces.Name())
	follow(in, txn, changed, in.pods, func(o *k8s.Pod, _ bool) {
		for id := range in.ofPod[o.Key()] {
			in.subject(txn, in.subjects[id])
		}
	})
	follow(in, txn, changed, in.namespaces, func(o *k8s.Namespace, _ bool) { namespaces[o.Name] = true })
	if in.listed == before && len(namespaces) == 0 {
		return
	}
	for _, ep := range in.subjects {
		if in.listed != before || namespaces[ep.K8sNamespace] {
			in.subject(txn, ep)
			in.alive()
		}
	}
}

// subject gives an endpoint of this node to the resolver: the labels by which policies select it, and the names of its ports.
func (in *inputs) subject(txn statedb.ReadTxn, ep *endpoints.Endpoint) {
	in.marked[ep.ID] = true
	in.resolver.UpsertSubject(policycompiler.Subject{ID: ep.ID, Labels: in.labels(txn, ep), Ports: portsOf(ep.Ports)})
}

// labels returns the labels by which policies select an endpoint. The labels of its pod and namespace in the same snapshot take precedence over the
// endpoint's row, which is updated later. Otherwise a pod whose label changes while the policy for the former label is removed would be evaluated with its
// former labels and the new policies, and be open although neither state allows that.
func (in *inputs) labels(txn statedb.ReadTxn, ep *endpoints.Endpoint) map[string]string {
	pod, _, found := in.Pods.Get(txn, k8s.PodByName(ep.PodName()))
	if !in.listed || !found || !pod.HasUID(ep.K8sUID) {
		return ep.Labels
	}
	namespace, _, _ := in.Namespaces.Get(txn, k8s.NamespaceByName(ep.K8sNamespace))
	return labels.MergeOtherSources(labels.OfPod(in.env.Cluster, pod, namespace), ep.Labels)
}

func portsOf(list []k8s.ContainerPort) []policy.NamedPort {
	var ports []policy.NamedPort
	for _, p := range list {
		number := map[string]uint8{"TCP": policy.ProtocolTCP, "UDP": policy.ProtocolUDP, "SCTP": policy.ProtocolSCTP}[p.Protocol]
		if number != 0 {
			ports = append(ports, policy.NamedPort{Name: p.Name, Protocol: number, Number: p.Number})
		}
	}
	return ports
}

// markUnlabelled marks the endpoints whose labels are not completely known: a policy may concern such an endpoint although it does not select it yet.
func (in *inputs) markUnlabelled() {
	for id, ep := range in.subjects {
		if ep.LabelsMissing != "" {
			in.marked[id] = true
		}
	}
}

// doubt returns why it is unknown which policies select an endpoint, "" if it is known: labels are missing, and a policy could select the endpoint with them.
// It names the first of these policies in order of names, so that equal inputs give equal rows.
func (in *inputs) doubt(ep *endpoints.Endpoint) string {
	if ep.LabelsMissing == "" {
		return ""
	}
	first := ""
	for ref, p := range in.policies {
		if !slices.ContainsFunc(p.Parts, func(part policy.Part) bool { return maySelect(part.Subject, ep.Labels) }) {
			continue
		}
		if name := ref.String(); first == "" || name < first {
			first = name
		}
	}
	if first == "" {
		return ""
	}
	return fmt.Sprintf("its labels, which decide whether %s selects it: %s", first, ep.LabelsMissing)
}

// maySelect reports whether a selector may match a set of labels of which only the labels have are known.
func maySelect(s policy.Selector, have map[string]string) bool {
	for _, r := range s.Requirements {
		if _, known := have[r.Source+":"+r.Key]; !known {
			continue
		}
		if one := (policy.Selector{Requirements: []policy.Requirement{r}}); !one.Matches(have) {
			return false
		}
	}
	return true
}
