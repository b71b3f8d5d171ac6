package servicechecks

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/waggle-net/waggle/test/kube"
)

// hookIPv4 is the address of the Service of the webhook.
const hookIPv4 = "10.96.0.20"

const hooksPath = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

// hookService is the Service of a pod that denies all requests.
const hookService = `
apiVersion: v1
kind: Service
metadata: {name: webhook}
spec:
  clusterIP: ` + hookIPv4 + `
  selector: {app: webhook}
  ports: [{port: 443, targetPort: 8443}]
`

// hookConfiguration sends each new ConfigMap with the label to the Service.
const hookConfiguration = `{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "refuse"},
	"webhooks": [{"name": "refuse.waggle.test", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail", "timeoutSeconds": 5,
	"rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
	"objectSelector": {"matchLabels": {"refuse": "yes"}},
	"clientConfig": {"service": {"namespace": "default", "name": "webhook", "port": 443}, "caBundle": %q}}]}`

// Webhook has the API server, which is outside the nodes, call a webhook in a pod on a node. The API server connects to the ClusterIP, which the router leads to
// node A, or with --enable-aggregator-routing to the address of the pod. source is the address that the pod sees; empty for any.
func Webhook(t *testing.T, w *World, node *kube.Node, source string) {
	certificate, key, err := kube.ServingCertificate("webhook.default.svc")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.RunPod(t.Context(), kube.Pod{Name: "webhook", Node: node.Name, Labels: map[string]string{"app": "webhook"}, Image: kube.TalkImage,
		Command: []string{"/bin/talk", "refuse", "-certificate", string(certificate) + string(key), "8443"}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Apply(t.Context(), hookService); err != nil {
		t.Fatal(err)
	}
	if err := w.Route(hookIPv4+"/32", w.A); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Request(t.Context(), http.MethodPost, hooksPath, fmt.Appendf(nil, hookConfiguration, base64.StdEncoding.EncodeToString(certificate))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Delete(context.WithoutCancel(t.Context()), hooksPath+"/refuse"); err != nil {
			t.Error(err)
		}
	})
	want := "denied the request: talk denies a request of " + source
	object := func(label string) map[string]any {
		return map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "any", "labels": map[string]string{"refuse": label}}}
	}
	// A dry run creates no object while the API server does not know the configuration yet.
	const configMaps = "/api/v1/namespaces/default/configmaps?dryRun=All"
	if err := w.WaitFor(t.Context(), "the webhook to deny an object", func() error {
		err := w.Create(t.Context(), configMaps, object("yes"))
		if err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("the answer is %v, want %q", err, want)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := w.Create(t.Context(), configMaps, object("no")); err != nil {
		t.Errorf("an object without the label: %v", err)
	}
}
