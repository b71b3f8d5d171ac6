package waggle_test

import (
	"errors"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

const configDigest = "waggle.io/config"

// TestPrivilegedOneNode_ClusterRoleTakesNewOptions changes options where the two replicas of the cluster role have one node
// between them, so that the new one finds no place before the old one has gone.
func TestPrivilegedOneNode_ClusterRoleTakesNewOptions(t *testing.T) {
	t.Parallel()
	c := kube.Start(t, kube.Options{ClusterCIDR: kube.IPv4CIDR})
	for _, debug := range []string{"false", "true"} {
		if err := c.InstallWaggle(t.Context(), "--set", "debug="+debug); err != nil {
			t.Fatal(err)
		}
		if err := c.WaitFor(t.Context(), "a replica with the options debug="+debug, func() error { return replicaIsNew(t, c) }); err != nil {
			t.Fatal(err)
		}
	}
}

// replicaIsNew wants a ready replica of the cluster role that was made from the Deployment as it is now.
func replicaIsNew(t *testing.T, c *kube.Cluster) error {
	var deployment struct {
		Spec struct {
			Template struct {
				Metadata struct{ Annotations map[string]string }
			}
		}
	}
	if err := c.GetObject(t.Context(), "/apis/apps/v1/namespaces/kube-system/deployments/waggle-cluster", &deployment); err != nil {
		return err
	}
	var pods struct {
		Items []struct {
			Metadata struct{ Annotations map[string]string }
			Status   struct {
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := c.GetObject(t.Context(), "/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io/name=waggle-cluster", &pods); err != nil {
		return err
	}
	want := deployment.Spec.Template.Metadata.Annotations[configDigest]
	for _, pod := range pods.Items {
		for _, condition := range pod.Status.Conditions {
			if condition.Type == "Ready" && condition.Status == "True" && pod.Metadata.Annotations[configDigest] == want {
				return nil
			}
		}
	}
	return errors.New("no ready replica has the options of the Deployment")
}
