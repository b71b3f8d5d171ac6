package waggle_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// staticPod is a static pod with its own network. The runtime knows the pod by a UID of kubelet, the API server by another UID.
const staticPod = `apiVersion: v1
kind: Pod
metadata: {name: static, namespace: %s, labels: {app: static}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: ` + kube.ClientImage + `, imagePullPolicy: Never, command: [sleep, "1000000"]}
`

// podsOfPreviousNetwork migrates a node from another network to Waggle: pods that keep the old network are listed as unmanaged until they are created again.
func podsOfPreviousNetwork(t *testing.T, shared *kube.Cluster) {
	c, n := ranged(t, shared, kube.NodeOptions{})
	if err := n.InstallBridge("10.0.1.0/24"); err != nil {
		t.Fatal(err)
	}
	for _, pod := range []kube.Pod{{Name: "old"}, {Name: "host", HostNet: true}} {
		if err := c.RunPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	job := map[string]any{"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]string{"name": "job"},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
			"containers": []map[string]any{{"name": "main", "image": kube.ClientImage, "imagePullPolicy": "Never", "command": []string{"true"}}}}}}}
	if err := c.Create(t.Context(), "/apis/batch/v1/namespaces/"+c.Namespace+"/jobs", job); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitFor(t.Context(), "the job to be done", func() error {
		var o struct{ Status struct{ Succeeded int } }
		err := c.GetObject(t.Context(), "/apis/batch/v1/namespaces/"+c.Namespace+"/jobs/job", &o)
		if err == nil && o.Status.Succeeded != 1 {
			err = errors.New("it has not succeeded yet")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Run(t.Context(), "rm", "/etc/cni/net.d/10-bridge.conflist"); err != nil {
		t.Fatal(err)
	}

	p := readyAgent(t, n, "--ipam=kubernetes")
	old := c.Namespace + "/old"
	unmanaged(t, c, n, old)
	if err := n.WaitStatus(t.Context(), func(status string) bool {
		return strings.Contains(status, "1 run without an endpoint") && strings.Contains(status, old)
	}); err != nil {
		t.Errorf("the status does not name the pod: %v", err)
	}
	if err := n.WaitStatus(t.Context(), func(status string) bool {
		return strings.Contains(strings.Join(strings.Fields(status), ""), `"unmanaged-pods":["`+old+`"]`)
	}, "-o", "json"); err != nil {
		t.Errorf("the status in JSON does not name the pod: %v", err)
	}

	// A pod that is created again has Waggle's network, and so has a static pod.
	if err := c.DeletePod(t.Context(), "old"); err != nil {
		t.Fatal(err)
	}
	if err := c.RunPod(t.Context(), kube.Pod{Name: "old", Labels: map[string]string{"app": "old"}}); err != nil {
		t.Fatal(err)
	}
	if err := n.WriteFile("/etc/kubernetes/manifests/static.yaml", fmt.Sprintf(staticPod, c.Namespace), 0o644); err != nil {
		t.Fatal(err)
	}
	mirror := "static-" + n.Name
	if err := c.WaitPodReady(t.Context(), mirror); err != nil {
		t.Fatal(err)
	}
	unmanaged(t, c, n)
	for _, pod := range []string{"old", mirror} {
		if err := c.WaitFor(t.Context(), "a CiliumEndpoint of "+pod, func() error {
			_, err := publishedIdentity(t.Context(), c, pod)
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	names, err := c.Kubectl(t.Context(), "get", "ciliumendpoints", "-o", "name")
	if err != nil || strings.Count(names, "\n") != 2 {
		t.Errorf("want the CiliumEndpoints of two pods: %v\n%s", err, names)
	}
	if err := c.WaitFor(t.Context(), "complete labels", func() error { // the message of a component that stays OK is a second old at most
		health, err := n.Waggle(t.Context(), "db", "show", "health")
		if err == nil && strings.Contains(health, "labels of") {
			err = fmt.Errorf("labels are incomplete:\n%s", health)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	stop(t, p)
}

// unmanaged waits until exactly these pods are listed as unmanaged.
func unmanaged(t *testing.T, c *kube.Cluster, n *kube.Node, want ...string) {
	t.Helper()
	if err := c.WaitFor(t.Context(), fmt.Sprintf("unmanaged pods to be %v", want), func() error {
		all, err := readRows[struct{ Namespace, Name string }](t, n, "unmanaged-pods")
		if err != nil {
			return err
		}
		var names []string
		for _, row := range all {
			names = append(names, row.Namespace+"/"+row.Name)
		}
		if !slices.Equal(names, want) {
			return fmt.Errorf("they are %v", names)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
