package endpointmanager

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

func webPorts(number uint16) []k8s.ContainerPort {
	return []k8s.ContainerPort{{Name: "web", Protocol: "TCP", Number: number}}
}

func (r *rig) deletePod(t testing.TB, p *k8s.Pod) {
	t.Helper()
	txn := r.db.WriteTxn(r.pods)
	defer txn.Commit()
	_, _, err := r.pods.Delete(txn, p)
	require.NoError(t, err)
}

// The object of a pod may be deleted long before its containers end. The endpoint keeps the pod's ports, also after a restart of the agent.
func TestPorts_PodObjectDeleted_KeepsPorts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := started(t, dir)
	pod := onePod("web")
	pod.Ports = webPorts(80)
	r.setPod(t, pod)
	ep, err := r.Create(t.Context(), request(1))
	require.NoError(t, err)
	require.Equal(t, webPorts(80), ep.Ports)

	r.deletePod(t, pod)
	r.setPod(t, &k8s.Pod{Namespace: "default", Name: "pod-1", UID: "the next of this name", Ports: webPorts(81)})
	for _, r := range []*rig{r, started(t, dir)} {
		_, _, err = r.refreshLabels()
		require.NoError(t, err)
		require.Equal(t, webPorts(80), r.rows()[0].Ports)
		require.Equal(t, "web", r.rows()[0].Labels["k8s:app"])
	}
	ep, err = r.SetLabels("1", []string{"user:a=b"})
	require.NoError(t, err)
	require.Equal(t, webPorts(80), ep.Ports, "new labels change no ports")
}

// The reply of the API server contains the ports like the row of the watch, and the first row of the endpoint has them.
func TestPorts_PodMissingFromWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pod := onePod("web")
		pod.Ports = webPorts(80)
		r := withKubernetes(t, getPodReturns(pod, nil))
		ep, _ := r.create(t)
		require.Equal(t, webPorts(80), ep.Ports)
		_, _, err := r.refreshLabels()
		require.NoError(t, err)
		require.Equal(t, webPorts(80), r.rows()[0].Ports)
	})
}

// A file of an older release has no ports, and the row of its pod exists.
func TestPorts_FileWithoutPorts_TakenFromPod(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ep, err := started(t, dir).Create(t.Context(), request(1))
	require.NoError(t, err)
	require.Empty(t, ep.Ports)
	r := started(t, dir)
	pod := onePod("web")
	pod.Ports = webPorts(80)
	r.setPod(t, pod)
	_, _, err = r.refreshLabels()
	require.NoError(t, err)
	require.Equal(t, webPorts(80), r.rows()[0].Ports)
}
