package waggle_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/waggle-net/waggle/test/kube"
)

// template returns a pod template with a label that determines the pods' identity.
func template(app string, annotations map[string]string) map[string]any {
	return map[string]any{"metadata": map[string]any{"labels": map[string]string{"app": app}, "annotations": annotations},
		"spec": map[string]any{"terminationGracePeriodSeconds": 0, "containers": []map[string]any{{"name": "main", "image": kube.ClientImage,
			"imagePullPolicy": "Never", "command": []string{"sleep", "1000000"}, "resources": map[string]any{"requests": map[string]string{"cpu": "10m"}}}}}}
}

// publishedIdentities returns the identities in the CiliumEndpoints of an app's pods, by pod.
func publishedIdentities(ctx context.Context, c *kube.Cluster, app string) (map[string]int64, error) {
	var pods struct {
		Items []struct{ Metadata struct{ Name string } }
	}
	if err := c.GetObject(ctx, "/api/v1/namespaces/"+c.Namespace+"/pods?labelSelector=app%3D"+app, &pods); err != nil {
		return nil, err
	}
	found := map[string]int64{}
	for _, pod := range pods.Items {
		number, err := publishedIdentity(ctx, c, pod.Metadata.Name)
		if err != nil {
			return nil, err
		}
		found[pod.Metadata.Name] = number
	}
	return found, nil
}

func publishedIdentity(ctx context.Context, c *kube.Cluster, pod string) (int64, error) {
	var o struct {
		Status struct{ Identity struct{ ID int64 } }
	}
	err := c.GetObject(ctx, "/apis/cilium.io/v2/namespaces/"+c.Namespace+"/ciliumendpoints/"+pod, &o)
	if err == nil && o.Status.Identity.ID == 0 {
		err = fmt.Errorf("the CiliumEndpoint %s has no identity", pod)
	}
	return o.Status.Identity.ID, err
}

// shareOne waits until count pods have the same identity.
func shareOne(t *testing.T, c *kube.Cluster, app string, count int) {
	t.Helper()
	if err := c.WaitFor(t.Context(), fmt.Sprintf("%d pods of %s to have one identity", count, app), func() error {
		found, err := publishedIdentities(t.Context(), c, app)
		if err != nil {
			return err
		}
		numbers := slices.Compact(slices.Sorted(maps.Values(found)))
		if len(found) != count || len(numbers) != 1 {
			return fmt.Errorf("the pods have %v", found)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// labelsCreateIdentities tests identities with labels that Kubernetes' controllers set, and then changes labels of a running pod while it sends traffic.
func labelsCreateIdentities(t *testing.T, shared *kube.Cluster) {
	c, n := ranged(t, shared, kube.NodeOptions{})
	p := readyAgent(t, n, "--ipam=kubernetes")
	if err := n.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	apps := "/apis/apps/v1/namespaces/" + c.Namespace + "/"
	selector := func(app string) map[string]any { return map[string]any{"matchLabels": map[string]string{"app": app}} }

	// Pods of two ReplicaSets of one Deployment differ in pod-template-hash. The newer one never replaces the older one.
	deployment := map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]string{"name": "rolling"},
		"spec": map[string]any{"replicas": 1, "minReadySeconds": 3600, "progressDeadlineSeconds": 7200, "selector": selector("rolling"), "template": template("rolling", nil),
			"strategy": map[string]any{"rollingUpdate": map[string]any{"maxSurge": 1, "maxUnavailable": 0}}}}
	if err := c.Create(t.Context(), apps+"deployments", deployment); err != nil {
		t.Fatal(err)
	}
	shareOne(t, c, "rolling", 1)
	change, err := json.Marshal(map[string]any{"spec": map[string]any{"template": template("rolling", map[string]string{"turn": "second"})}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.MergePatch(t.Context(), apps+"deployments/rolling", string(change)); err != nil {
		t.Fatal(err)
	}
	shareOne(t, c, "rolling", 2)

	// Pods of a StatefulSet differ in the labels for their name and number.
	set := map[string]any{"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": map[string]string{"name": "set"},
		"spec": map[string]any{"replicas": 2, "podManagementPolicy": "Parallel", "serviceName": "set", "selector": selector("set"), "template": template("set", nil)}}
	if err := c.Create(t.Context(), apps+"statefulsets", set); err != nil {
		t.Fatal(err)
	}
	shareOne(t, c, "set", 2)

	// Label changes must not interrupt the pods' traffic.
	for _, pod := range []string{"set-0", "set-1"} {
		if err := c.WaitPodReady(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	containers := containersOf(t, n)
	peers, err := c.PodIPs(t.Context(), "set-1")
	if err != nil {
		t.Fatal(err)
	}
	var talk errgroup.Group
	talking, hush := context.WithCancel(t.Context())
	defer hush()
	talk.Go(func() error { return pingUntil(talking, n, containers["set-0"], peers[0]) })
	before, err := publishedIdentity(t.Context(), c, "set-0")
	if err != nil {
		t.Fatal(err)
	}
	for _, labelled := range []string{"pod/set-0", "namespace/" + c.Namespace} {
		if out, err := c.Kubectl(t.Context(), "label", labelled, "tier=front"); err != nil {
			t.Fatal(err, out)
		}
		if err := c.WaitFor(t.Context(), "another identity after a label of "+labelled, func() error {
			now, err := publishedIdentity(t.Context(), c, "set-0")
			if err == nil && now == before {
				err = fmt.Errorf("it has %d as before", now)
			}
			if err == nil {
				before = now
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	}
	hush()
	if err := talk.Wait(); err != nil {
		t.Error(err)
	}
	stop(t, p)
}
