package kube

import (
	"encoding/json"
	"fmt"
	"strings"
)

// object holds the fields that this package reads of Kubernetes objects.
type object struct {
	Metadata struct {
		Name              string
		Namespace         string
		UID               string
		DeletionTimestamp string
		OwnerReferences   []struct{ Kind, Name string }
	}
	Spec struct {
		NodeName string
		PodCIDRs []string
	}
	Status struct {
		Phase      string
		Conditions []struct{ Type, Status, Reason, Message string }
		PodIPs     []struct{ IP string }
	}
}

// condition returns nil if the object's condition of a type is True.
func (o object) condition(kind string) error {
	for _, c := range o.Status.Conditions {
		if c.Type == kind && c.Status == "True" {
			return nil
		}
		if c.Type == kind {
			return fmt.Errorf("%s is %s: %s: %s", kind, c.Status, c.Reason, c.Message)
		}
	}
	return fmt.Errorf("no condition %s yet (phase %q)", kind, o.Status.Phase)
}

func jsonText(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // callers pass only values with a JSON form
	}
	return string(text)
}

// TooManyRequirements returns the values of fromRequires of three CiliumNetworkPolicies, in JSON. Each is correct, but together they have 210 conditions on the
// peers of an endpoint, more than the 200 that a node enforces.
func TooManyRequirements() [3]string {
	var all [3]string
	for policy := range all {
		var values []string
		for i := range 70 {
			values = append(values, fmt.Sprintf("%q", fmt.Sprintf("n%d-%d", policy, i)))
		}
		all[policy] = `[{"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [` + strings.Join(values, ", ") + `]}]}]`
	}
	return all
}
