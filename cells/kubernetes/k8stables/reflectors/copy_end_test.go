package reflectors

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// TestCopy_IsWrittenAtTheEnd restarts the agent. The next copy is not due yet.
func TestCopy_IsWrittenAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Put(node("one", "192.0.2.1"))
		copyOnDisk := filepath.Join(t.TempDir(), "k8s-snapshot")
		r := follow(t, server, Settings{Copy: copyOnDisk, CopyEvery: time.Hour}, false)
		eventually(t, "there is a copy", func() bool { return !r.source("k8s-nodes").Copy.IsZero() })
		server.Put(pod("a", "mine", "one"))
		r.becomesSame(t, server)
		r.stop()
		server.Stop()
		again := follow(t, server, Settings{Copy: copyOnDisk}, false)
		eventually(t, "the copy is used", func() bool { return again.source("k8s-nodes").State == sources.Snapshot })
		if err := again.same(server, "one"); err != nil {
			t.Error(err)
		}

		// An agent without new rows does not write the copy.
		before := must[os.FileInfo](t)(os.Stat(copyOnDisk))
		again.stop()
		if after := must[os.FileInfo](t)(os.Stat(copyOnDisk)); !os.SameFile(before, after) {
			t.Error("a copy of the copy was written")
		}
	})
}

func TestCopy_UnusableIsQuarantined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		path := filepath.Join(t.TempDir(), "k8s-snapshot")
		if err := os.WriteFile(path, []byte("{\"waggle\":\"k8s-snapshot\",\"version\":99}\nx"), 0o600); err != nil {
			t.Fatal(err)
		}
		r := follow(t, server, Settings{Copy: path}, false)
		r.synced(t)
		if _, err := os.Stat(path + ".bad"); err != nil {
			t.Error(err)
		}
	})
}

// TestCopy_OtherClusterIsQuarantined starts with the copy of another cluster: the agent must not use its pod range.
func TestCopy_OtherClusterIsQuarantined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		elsewhere, path := kubetest.New(t, kubetest.InMemory()), filepath.Join(t.TempDir(), "k8s-snapshot")
		elsewhere.Put(node("one", "192.0.2.1"))
		r := follow(t, elsewhere, Settings{Copy: path}, false)
		eventually(t, "there is a copy", func() bool { return !r.source("k8s-nodes").Copy.IsZero() })
		r.stop()
		here := kubetest.New(t, kubetest.InMemory())
		here.Stop()
		again := follow(t, here, Settings{Copy: path}, false)
		eventually(t, "the copy is set aside", func() bool { _, err := os.Stat(path + ".bad"); return err == nil })
		if state := again.source("k8s-nodes").State; state != sources.Waiting {
			t.Errorf("the nodes are %s", state)
		}
	})
}

// TestCopy_ContainsNoSecrets searches the rows, the contents of a copy, for secrets in fields that users fill by mistake.
func TestCopy_ContainsNoSecrets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const canary = "CANARY"
		server := kubetest.New(t, kubetest.InMemory())
		meta := metav1.ObjectMeta{Namespace: "a", Name: "x", Annotations: map[string]string{
			"kubectl.kubernetes.io/last-applied-configuration": canary, "password": canary, "vault.example/token": canary}}
		p := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: "one", Containers: []corev1.Container{{Name: "c",
			Args: []string{canary}, Env: []corev1.EnvVar{{Name: "TOKEN", Value: canary}}}}}}
		n := node("one", "192.0.2.1")
		n.Annotations = meta.Annotations
		server.Put(p, n, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}})
		r := follow(t, server, Settings{}, false)
		r.synced(t)
		for _, table := range r.All() {
			for key, text := range r.keys(table.Name()) { // the copy has only the contents of these rows
				if has(text, canary) {
					t.Errorf("%s %s: %s", table.Name(), key, text)
				}
			}
		}
		if len(r.keys("k8s-pods")) != 1 || len(r.keys("k8s-services")) != 1 {
			t.Error("the objects are not there")
		}
	})
}
