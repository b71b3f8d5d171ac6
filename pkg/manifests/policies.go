package manifests

import (
	"errors"
	"fmt"
	"maps"

	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// maxErrors limits the reported errors of one file.
const maxErrors = 5

// Policies reads the network policies of a file, of Kubernetes and of Cilium, and returns the names of other objects as ignored. CiliumCIDRGroups of the file
// replace groups of the environment. It returns either policies or an error. A part of a policy that is not enforced is no error, but a problem of the
// policy.
func Policies(data []byte, env policy.Environment) (policies []*policy.Policy, ignored []string, err error) {
	var errs []error
	first := map[policy.Ref]int{} // line of the first occurrence of each policy
	documents := Parse(data, false, "")
	env.CIDRGroups = withGroups(env.CIDRGroups, documents)
	for _, d := range documents {
		var p *policy.Policy
		switch row := d.Row.(type) {
		case *k8s.NetworkPolicy:
			p = policy.FromKubernetes(row, env)
		case *cilium.Policy:
			p = policy.FromCilium(row, env)
		case *cilium.CIDRGroup:
			continue
		default:
			if skip := k8sobjects.NotForUs(""); d.Err != nil && !errors.As(d.Err, &skip) {
				errs = append(errs, fmt.Errorf("line %d: %w", d.Line, d.Err))
			} else {
				ignored = append(ignored, d.Kind+" "+d.Name)
			}
			continue
		}
		if line, doubled := first[p.Ref]; doubled {
			errs = append(errs, fmt.Errorf("line %d: %s is already on line %d", d.Line, p.Ref, line))
			continue
		}
		first[p.Ref] = d.Line
		policies = append(policies, p)
	}
	if len(errs) > 0 {
		return nil, nil, errors.Join(errs[:min(len(errs), maxErrors)]...)
	}
	return policies, ignored, nil
}

// Groups reads the CiliumCIDRGroups of a file.
func Groups(data []byte) (groups []*cilium.CIDRGroup) {
	for _, d := range Parse(data, false, "") {
		if g, ok := d.Row.(*cilium.CIDRGroup); ok {
			groups = append(groups, g)
		}
	}
	return groups
}

// withGroups returns groups together with the groups of some documents.
func withGroups(groups policy.CIDRGroups, documents []Document) policy.CIDRGroups {
	all := policy.CIDRGroups{}
	maps.Copy(all, groups)
	for _, d := range documents {
		if g, ok := d.Row.(*cilium.CIDRGroup); ok {
			all[g.Name] = g
		}
	}
	return all
}
