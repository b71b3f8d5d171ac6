package nodes_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// webOnThree waits for the server of Deployment web on the third node and returns its name.
func (w *world) webOnThree(t *testing.T) (name string) {
	t.Helper()
	if err := w.WaitFor(t.Context(), "a server of web on "+w.three.Name, func() (err error) { name, err = w.readyWeb(t); return err }); err != nil {
		t.Fatal(err)
	}
	return name
}

func (w *world) readyWeb(t *testing.T) (string, error) {
	type condition struct{ Type, Status string }
	var list struct {
		Items []struct {
			Metadata struct{ Name, DeletionTimestamp string }
			Status   struct{ Conditions []condition }
		}
	}
	if err := w.GetObject(t.Context(), "/api/v1/namespaces/default/pods?labelSelector=app%3Dweb&fieldSelector=spec.nodeName%3D"+w.three.Name, &list); err != nil {
		return "", err
	}
	for _, pod := range list.Items {
		if pod.Metadata.DeletionTimestamp == "" && slices.Contains(pod.Status.Conditions, condition{"Ready", "True"}) {
			return pod.Metadata.Name, nil
		}
	}
	return "", fmt.Errorf("of %d none is ready", len(list.Items))
}

// served returns the servers of Deployment web in answers.
func (w *world) served(answers []string) (servers []string) {
	for _, a := range answers {
		if name, _, _ := strings.Cut(a, " "); w.ips[name] == nil {
			servers = append(servers, name)
		}
	}
	return servers
}

// podRanges returns the pod ranges of the third node.
func (w *world) podRanges(t *testing.T) []string {
	t.Helper()
	var n struct{ Spec struct{ PodCIDRs []string } }
	if err := w.GetObject(t.Context(), "/api/v1/nodes/"+w.three.Name, &n); err != nil {
		t.Fatal(err)
	}
	return n.Spec.PodCIDRs
}

// takesPods returns nil if the third node is registered and has no taint: its agent's self-test has passed.
func (w *world) takesPods(t *testing.T) error {
	var n struct {
		Spec struct{ Taints []struct{ Key string } }
	}
	if err := w.GetObject(t.Context(), "/api/v1/nodes/"+w.three.Name, &n); err != nil {
		return err
	}
	if len(n.Spec.Taints) > 0 {
		return fmt.Errorf("%s has the taints %v", w.three.Name, n.Spec.Taints)
	}
	return nil
}
