package nodes_test

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
const hookIPv4 = "10.96.0.86"

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

// webhook has the API server call a webhook in a pod on the third node. The API server runs outside the nodes and connects to the ClusterIP. The router leads
// the address to the first node, which serves ClusterIPs for clients outside and reaches the pod through the tunnel.
func (w *world) webhook(t *testing.T) {
	certificate, key, err := kube.ServingCertificate("webhook.default.svc")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.RunPod(t.Context(), kube.Pod{Name: "webhook", Node: w.three.Name, Labels: map[string]string{"app": "webhook"}, Image: kube.TalkImage,
		Command: []string{"/bin/talk", "refuse", "-certificate", string(certificate) + string(key), "8443"}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Apply(t.Context(), hookService); err != nil {
		t.Fatal(err)
	}
	if err := w.Route(hookIPv4+"/32", w.one); err != nil {
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
	want := "denied the request: talk denies a request of " + w.internal(t, w.one)[0]
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
