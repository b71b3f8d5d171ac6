package endpointmanager

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// withKubernetes starts a manager whose API server replies to requests for pods with answer.
func withKubernetes(t testing.TB, answer livePods) *rig {
	t.Helper()
	r := started(t, t.TempDir())
	r.live, r.cluster = answer, "c1"
	r.setNamespace(t, &k8s.Namespace{Name: "default", Labels: map[string]string{"team": "a"}})
	return r
}

func getPodReturns(pod *k8s.Pod, err error) livePods {
	return func(context.Context, string, string) (*k8s.Pod, error) { return pod, err }
}

func failOnLookup(t testing.TB) livePods {
	return func(context.Context, string, string) (*k8s.Pod, error) {
		t.Error("the API server was asked for a pod whose row is there")
		return nil, errors.New("must not be asked")
	}
}

func (r *rig) create(t testing.TB) (*endpoints.Endpoint, time.Duration) {
	t.Helper()
	begin := time.Now()
	ep, err := r.Create(t.Context(), request(1))
	require.NoError(t, err)
	return ep, time.Since(begin)
}

func onePod(app string) *k8s.Pod {
	return &k8s.Pod{Namespace: "default", Name: "pod-1", UID: "uid-1", Labels: map[string]string{"app": app}}
}

func TestCreate_WaitsForPodRow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := withKubernetes(t, failOnLookup(t))
		r.setPod(t, &k8s.Pod{Namespace: "default", Name: "pod-1", UID: "the one before", Labels: map[string]string{"app": "old"}})
		go func() {
			time.Sleep(300 * time.Millisecond)
			r.setPod(t, onePod("web"))
		}()
		ep, took := r.create(t)
		require.Equal(t, 300*time.Millisecond, took)
		require.Equal(t, map[string]string{"k8s:app": "web", "k8s:io.kubernetes.pod.namespace": "default",
			"k8s:io.cilium.k8s.policy.cluster": "c1", "k8s:io.cilium.k8s.namespace.labels.team": "a"}, ep.Labels)
		require.Empty(t, ep.LabelsMissing)

		synctest.Wait()
		require.NoError(t, r.Delete(t.Context(), "1"))
		_, took = r.create(t)
		require.Zero(t, took, "a pod that is known costs no wait")
	})
}

// The runtime knows a static pod by the UID that kubelet assigned, and the API server by the UID of its mirror pod.
func TestCreate_StaticPod_MatchesBothUIDs(t *testing.T) {
	t.Parallel()
	r := withKubernetes(t, failOnLookup(t))
	pod := onePod("web")
	pod.UID, pod.StaticUID = "that of the object", "uid-1"
	r.setPod(t, pod)
	ep, _ := r.create(t)
	require.Equal(t, "web", ep.Labels["k8s:app"])
}

func TestCreate_LateWatch_QueriesAPIServerOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := withKubernetes(t, getPodReturns(onePod("web"), nil))
		ep, took := r.create(t)
		require.Equal(t, podWait, took)
		require.Equal(t, "web", ep.Labels["k8s:app"])
		require.Empty(t, ep.LabelsMissing)
		_, incomplete, err := r.refreshLabels()
		require.NoError(t, err)
		require.Empty(t, incomplete)
		require.Equal(t, "web", r.rows()[0].Labels["k8s:app"], "the answer stands until there is a row")
		r.setPod(t, onePod("changed"))
		_, _, err = r.refreshLabels()
		require.NoError(t, err)
		require.Equal(t, "changed", r.rows()[0].Labels["k8s:app"])
	})
}

func TestCreate_UnknownPod_UsesNamespaceLabels(t *testing.T) {
	t.Parallel()
	other := onePod("old")
	other.UID = "another"
	for what, answer := range map[string]livePods{
		"connection refused": getPodReturns(nil, errors.New("connection refused")),
		"UID another":        getPodReturns(other, nil),
	} {
		synctest.Test(t, func(t *testing.T) {
			r := withKubernetes(t, answer)
			ended, health := make(chan error, 1), &lastHealth{}
			ctx, cancel := context.WithCancel(t.Context())
			go func() { ended <- r.followPods(ctx, health) }()
			ep, _ := r.create(t)
			want := map[string]string{"k8s:io.kubernetes.pod.namespace": "default", "k8s:io.cilium.k8s.policy.cluster": "c1"}
			require.Equal(t, want, ep.Labels)
			require.Contains(t, ep.LabelsMissing, "labels of pod default/pod-1")
			require.Contains(t, ep.LabelsMissing, what)
			waitSettled()
			require.Contains(t, health.text, "Degraded labels of 1 endpoints are incomplete: endpoint 1")

			r.setPod(t, onePod("web"))
			waitSettled()
			row := r.rows()[0]
			require.Equal(t, "web", row.Labels["k8s:app"])
			require.Empty(t, row.LabelsMissing)
			require.Equal(t, "OK labels follow pods and namespaces", health.text)
			cancel()
			require.NoError(t, <-ended)
		})
	}
}

func TestCreate_APIServerUnavailable_DoesNotWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := withKubernetes(t, getPodReturns(nil, errors.New("connection refused")))
		servers, err := apiservers.NewTable(r.db)
		require.NoError(t, err)
		r.servers = servers
		setReach := func(name string, reach apiservers.Reach) {
			txn := r.db.WriteTxn(servers)
			defer txn.Commit()
			_, _, _ = servers.Insert(txn, apiservers.Server{Server: name, Reachable: reach})
		}
		setReach("a", apiservers.No)
		setReach("b", apiservers.No)
		_, took := r.create(t)
		require.Zero(t, took)
		require.NoError(t, r.Delete(t.Context(), "1"))
		setReach("b", apiservers.Unknown)
		_, took = r.create(t)
		require.Equal(t, podWait, took, "one that was not tried may answer")
	})
}

func TestCreate_UnreadNamespace_ReportsMissingLabels(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := started(t, t.TempDir())
		r.live = failOnLookup(t)
		r.setPod(t, onePod("web"))
		ep, took := r.create(t)
		require.Equal(t, podWait, took)
		require.Equal(t, "labels of namespace default, which is not read yet", ep.LabelsMissing)
		require.Equal(t, "web", ep.Labels["k8s:app"])
		r.setNamespace(t, &k8s.Namespace{Name: "default"})
		_, incomplete, err := r.refreshLabels()
		require.NoError(t, err)
		require.Empty(t, incomplete)
		require.Empty(t, r.rows()[0].LabelsMissing)
	})
}

// An API server that accepts the request and does not reply delays an ADD by 2.5 s: 1 s for the row and 1.5 s for the reply. With the 1 s in which an identity
// may get its number from the cluster, 0.5 s of the 4 s limit of an ADD remain.
func TestCreate_SilentAPIServer_TakesTwoAndAHalfSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Fault(func(r *http.Request) (int, string) { <-r.Context().Done(); return 0, "" })
		r := withKubernetes(t, newPodSource(server.Client(t), agentconfig.Agent{NodeName: "bee"}))
		ep, took := r.create(t)
		require.Equal(t, 2500*time.Millisecond, took)
		require.Contains(t, ep.LabelsMissing, "labels of pod default/pod-1")
		require.Len(t, server.Requests(), 1)
	})
}

func TestPodSource_OnlyPodsOfThisNode(t *testing.T) {
	t.Parallel()
	server := kubetest.New(t)
	meta := metav1.ObjectMeta{Namespace: "default", Name: "pod-1", UID: "uid-1", Labels: map[string]string{"app": "web"}}
	always := corev1.ContainerRestartPolicyAlways
	server.Put(&corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: "bee", ServiceAccountName: "sa",
		Containers:     []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 80}, {ContainerPort: 81}}}},
		InitContainers: []corev1.Container{{RestartPolicy: &always, Ports: []corev1.ContainerPort{{Name: "dns", ContainerPort: 53, Protocol: "UDP"}}}}}})
	ask := func(node string) (*k8s.Pod, error) {
		return newPodSource(server.Client(t), agentconfig.Agent{NodeName: node})(t.Context(), "default", "pod-1")
	}
	pod, err := ask("bee")
	require.NoError(t, err)
	require.True(t, pod.Equal(&k8s.Pod{Namespace: "default", Name: "pod-1", UID: "uid-1", NodeName: "bee", ServiceAccount: "sa",
		Labels: map[string]string{"app": "web"},
		Ports:  []k8s.ContainerPort{{Name: "web", Protocol: "TCP", Number: 80}, {Name: "dns", Protocol: "UDP", Number: 53}}}))
	_, err = ask("wasp")
	require.ErrorContains(t, err, `pod default/pod-1 is on node "bee", and this is wasp`)
	require.Nil(t, newPodSource(nil, agentconfig.Agent{}), "Kubernetes is off")
}

// lastHealth stores the last report.
type lastHealth struct{ text string }

func (h *lastHealth) OK(s string)                  { h.text = "OK " + s }
func (h *lastHealth) Degraded(s string, err error) { h.text = "Degraded " + s + ": " + err.Error() }
func (h *lastHealth) Stopped(s string)             { h.text = "Stopped " + s }
func (h *lastHealth) NewScope(string) cell.Health  { return h }
func (h *lastHealth) Close()                       {}
