package waggle_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// policyKind is a kind of policies with objects in namespace x.
type policyKind struct{ apiVersion, kind, nothing string } // nothing is the spec of a policy that selects no pod

var (
	kubernetesPolicy = policyKind{"networking.k8s.io/v1", "NetworkPolicy", "podSelector: {matchLabels: {app: nothing}}"}
	ciliumPolicy     = policyKind{"cilium.io/v2", "CiliumNetworkPolicy", "endpointSelector: {matchLabels: {app: nothing}}, ingress: [{fromEntities: [cluster]}]"}
)

func (k policyKind) object(name, spec string) string {
	return "---\n{apiVersion: " + k.apiVersion + ", kind: " + k.kind + ", metadata: {namespace: x, name: " + name + "}, spec: {" + spec + "}}\n"
}

// apply applies objects of a kind and waits until they are enforced. It adds a last policy of the same kind as a mark: once the agent lists the mark, the
// agent has processed all previous changes of this kind and has published the resulting policies of endpoints.
func (w *policyWorld) apply(t *testing.T, kind policyKind, objects string) {
	t.Helper()
	w.marks++
	mark := fmt.Sprintf("mark-%d", w.marks)
	if err := w.Apply(t.Context(), objects+kind.object(mark, kind.nothing)); err != nil {
		t.Fatal(err)
	}
	row := kind.kind + " x/" + mark + " "
	if err := w.WaitFor(t.Context(), "the policies to be in force", func() error {
		known, err := w.node.Waggle(t.Context(), "db", "show", "policies")
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(strings.Split(known, "\n"), func(line string) bool { return strings.HasPrefix(line, row) }) {
			return fmt.Errorf("the agent does not know %s\n%s", row, known)
		}
		return w.taken(t)
	}); err != nil {
		t.Fatal(err)
	}
}

// labelNamespace changes the label team of a namespace and waits until the datapath uses the pods' new identities.
func (w *policyWorld) labelNamespace(t *testing.T, namespace, team string) {
	t.Helper()
	if err := w.MergePatch(t.Context(), "/api/v1/namespaces/"+namespace, fmt.Sprintf(`{"metadata": {"labels": {"team": %q}}}`, team)); err != nil {
		t.Fatal(err)
	}
	if err := w.WaitFor(t.Context(), "the label to be in force", func() error {
		if err := w.labelled(t, namespace, team); err != nil {
			return err
		}
		return w.taken(t)
	}); err != nil {
		t.Fatal(err)
	}
}

// policyFacts is the row of an endpoint in table endpoint-facts: the endpoint's configuration in the datapath.
type policyFacts struct {
	ID             int
	Identity       int
	Ingress        policyDecision
	Egress         policyDecision
	PolicyRevision int
	Status         struct{ Kind string }
}

type policyDecision struct {
	Enforced, Audited struct{ ID, Shape int }
	Isolated          bool
}

// taken returns nil if the maps of the datapath contain the policies that the agent has published, for every endpoint.
func (w *policyWorld) taken(t *testing.T) error {
	published, err := readRows[struct {
		EndpointID, Identity, Revision int
		Ingress, Egress                policyDecision
		Error                          string
	}](t, w.node, "endpoint-policies")
	if err != nil {
		return err
	}
	if len(published) < len(policyPods) {
		return fmt.Errorf("there are policies for %d endpoints only", len(published))
	}
	facts, err := w.facts(t)
	if err != nil {
		return err
	}
	for _, p := range published {
		f := facts[p.EndpointID]
		if p.Error != "" || f.Status.Kind != "Done" || f.Identity != p.Identity || f.Ingress != p.Ingress || f.Egress != p.Egress || f.PolicyRevision != p.Revision {
			return fmt.Errorf("endpoint %d is to have %+v and has %+v", p.EndpointID, p, f)
		}
	}
	return nil
}

func (w *policyWorld) facts(t *testing.T) (map[int]policyFacts, error) {
	all, err := readRows[policyFacts](t, w.node, "endpoint-facts")
	byID := map[int]policyFacts{}
	for _, f := range all {
		byID[f.ID] = f
	}
	return byID, err
}

// labelled returns nil if the pods of a namespace have identities with this label team, and the maps of the datapath contain the identities for the pods and
// their addresses.
func (w *policyWorld) labelled(t *testing.T, namespace, team string) error {
	all, err := readRows[struct {
		ID                       int
		K8sNamespace, IPv4, IPv6 string
	}](t, w.node, "endpoints")
	if err != nil {
		return err
	}
	identities, err := readRows[struct {
		EndpointID, Identity int
		Labels               map[string]string
	}](t, w.node, "endpoint-identities")
	if err != nil {
		return err
	}
	addresses, err := readRows[struct {
		Prefix   string
		Identity int
		Status   struct{ Kind string }
	}](t, w.node, "ipcache")
	if err != nil {
		return err
	}
	facts, err := w.facts(t)
	if err != nil {
		return err
	}
	found := 0
	for _, e := range all {
		if e.K8sNamespace != namespace {
			continue
		}
		for _, i := range identities {
			if i.EndpointID != e.ID {
				continue
			}
			if i.Labels["k8s:io.cilium.k8s.namespace.labels.team"] != team || facts[e.ID].Identity != i.Identity {
				return fmt.Errorf("endpoint %d has the identity %+v, and programs have %+v", e.ID, i, facts[e.ID])
			}
			for _, a := range addresses {
				if a.Prefix != e.IPv4+"/32" && a.Prefix != e.IPv6+"/128" {
					continue
				}
				if a.Identity != i.Identity || a.Status.Kind != "Done" {
					return fmt.Errorf("endpoint %d has the identity %d, and the ipcache %+v", e.ID, i.Identity, a)
				}
				found++
			}
		}
	}
	if want := 2 * 2; found != want {
		return fmt.Errorf("%d of %d addresses of pods of %s are in the ipcache", found, want, namespace)
	}
	return nil
}
