package endpointmanager

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

func (r *rig) setPod(t testing.TB, p *k8s.Pod) {
	t.Helper()
	txn := r.db.WriteTxn(r.pods)
	defer txn.Abort()
	_, _, err := r.pods.Insert(txn, p)
	require.NoError(t, err)
	txn.Commit()
}

func (r *rig) setNamespace(t testing.TB, n *k8s.Namespace) {
	t.Helper()
	txn := r.db.WriteTxn(r.spaces)
	defer txn.Abort()
	_, _, err := r.spaces.Insert(txn, n)
	require.NoError(t, err)
	txn.Commit()
}

func TestLabels_PodLabelsReplaceRequestedK8sLabels(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	r.setNamespace(t, &k8s.Namespace{Name: "default", Labels: map[string]string{"team": "a"}})
	r.setPod(t, &k8s.Pod{Namespace: "default", Name: "pod-1", UID: "uid-1", ServiceAccount: "sa",
		Labels: map[string]string{"app": "web", "io.kubernetes.pod.namespace": "kube-system"}})
	q := request(1)
	q.Labels = []string{"k8s:app=claimed", "container:x=y"}
	ep, err := r.Create(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, []string{
		"container:x=y",
		"k8s:app=web",
		"k8s:io.cilium.k8s.namespace.labels.team=a",
		"k8s:io.cilium.k8s.policy.serviceaccount=sa",
		"k8s:io.kubernetes.pod.namespace=default", // not the namespace that a label of the pod names
	}, labels.Format(ep.Labels))
}

func TestLabels_NoPodOrOtherUID_UsesRequestedLabels(t *testing.T) {
	t.Parallel()
	r := started(t, t.TempDir())
	r.setPod(t, &k8s.Pod{Namespace: "default", Name: "pod-1", UID: "another", Labels: map[string]string{"app": "old"}})
	for n := 1; n <= 2; n++ {
		q := request(n)
		q.Labels = []string{"k8s:app=web"}
		ep, err := r.Create(t.Context(), q)
		require.NoError(t, err)
		require.Equal(t, map[string]string{"k8s:app": "web"}, ep.Labels)
	}
}

// Without Kubernetes a pod has no labels when no manifest contains it. Until the manifests are read this is unknown, and labelsMissing is set until the same
// row that has the labels.
func TestLabels_MissingUntilManifestsAreRead(t *testing.T) {
	t.Parallel()
	for _, state := range []sources.State{"", sources.Waiting, sources.Snapshot} {
		r := started(t, t.TempDir())
		r.read(t, state)
		for n := 1; n <= 2; n++ {
			ep, err := r.Create(t.Context(), request(n))
			require.NoError(t, err)
			require.Contains(t, ep.LabelsMissing, "labels of pod "+ep.PodName()+": ")
		}
		r.setPod(t, &k8s.Pod{Namespace: "default", Name: "pod-1", UID: "uid-1", Labels: map[string]string{"app": "a"}})
		r.read(t, sources.Synced)
		require.NotEmpty(t, r.rows()[0].LabelsMissing)
		changed, incomplete, err := r.refreshLabels()
		require.NoError(t, err)
		require.Empty(t, incomplete)
		rows := r.rows()
		require.Empty(t, rows[0].LabelsMissing)
		require.Equal(t, "a", rows[0].Labels["k8s:app"])
		require.Empty(t, rows[1].LabelsMissing, "no manifest has this pod")

		r.read(t, sources.Snapshot)
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		_, err = changed.Wait(ctx, 0)
		require.NoError(t, err, "another reading is another pass")
	}
}

// An endpoint of the previous run keeps the labels of its state file.
func TestLabels_RestoredFromPreviousRun_NotMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := started(t, dir).Create(t.Context(), request(1))
	require.NoError(t, err)
	r := started(t, dir)
	r.read(t, sources.Snapshot)
	_, _, err = r.refreshLabels()
	require.NoError(t, err)
	require.Empty(t, r.rows()[0].LabelsMissing)
}

// A copy of the pods is older than the state file of an endpoint whose label has changed since. The old label does not return.
func TestLabels_OlderSnapshot_DoesNotRevertLabels(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pod := func(role string) *k8s.Pod {
		return &k8s.Pod{Namespace: "default", Name: "pod-1", UID: "uid-1", Labels: map[string]string{"role": role}}
	}
	r := started(t, dir)
	r.setPod(t, pod("trusted"))
	_, err := r.Create(t.Context(), request(1))
	require.NoError(t, err)
	r.setPod(t, pod("quarantined"))
	_, _, err = r.refreshLabels()
	require.NoError(t, err)

	r = started(t, dir)
	r.read(t, sources.Snapshot)
	r.setPod(t, pod("trusted"))
	role := func() string {
		_, _, err := r.refreshLabels()
		require.NoError(t, err)
		return r.rows()[0].Labels["k8s:role"]
	}
	require.Equal(t, "quarantined", role())
	require.Equal(t, "quarantined", started(t, dir).rows()[0].Labels["k8s:role"], "on file")
	r.read(t, sources.Synced)
	insert(t, r.db, r.sources, sources.Source{Table: r.spaces.Name(), State: sources.Snapshot})
	require.Equal(t, "quarantined", role(), "the labels of its namespace may be old")
	insert(t, r.db, r.sources, sources.Source{Table: r.spaces.Name(), State: sources.Synced})
	require.Equal(t, "trusted", role(), "the API server says so itself")
}

// With a state directory that cannot be written, labels still follow the pod. The file is written as soon as possible.
func TestFollowPods_StateDirectoryNotWritable_UpdatesLabels(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := started(t, dir)
	_, err := r.Create(t.Context(), request(1))
	require.NoError(t, err)
	backup := r.files.Dir() + ".away"
	require.NoError(t, os.Rename(r.files.Dir(), backup))
	require.NoError(t, os.WriteFile(r.files.Dir(), nil, 0o600))
	r.setPod(t, &k8s.Pod{Namespace: "default", Name: "pod-1", UID: "uid-1", Labels: map[string]string{"app": "a"}})
	for range 2 {
		_, _, err = r.refreshLabels()
		require.ErrorContains(t, err, "write the labels of endpoint 1")
		require.Equal(t, "a", r.rows()[0].Labels["k8s:app"])
	}
	require.NoError(t, errors.Join(os.Remove(r.files.Dir()), os.Rename(backup, r.files.Dir())))
	_, _, err = r.refreshLabels()
	require.NoError(t, err)
	require.Equal(t, "a", started(t, dir).rows()[0].Labels["k8s:app"])
}

// read sets the state of the source of manifests, or removes it if state is empty.
func (r *rig) read(t testing.TB, state sources.State) {
	t.Helper()
	txn := r.db.WriteTxn(r.sources)
	defer txn.Commit()
	row := sources.Source{Table: r.pods.Name(), Producer: "manifests", State: state}
	_, _, err := r.sources.Insert(txn, row)
	if state == "" {
		_, _, err = r.sources.Delete(txn, row)
	}
	require.NoError(t, err)
}

func TestSetLabels_ReplacesUserLabelsKeepsPodLabels(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := started(t, dir)
	r.setPod(t, &k8s.Pod{Namespace: "default", Name: "pod-1"})
	q := request(1)
	q.Labels = []string{"container:x=y"}
	_, err := r.Create(t.Context(), q)
	require.NoError(t, err)
	ep, err := r.SetLabels("1", []string{"user:a=b"})
	require.NoError(t, err)
	want := map[string]string{"user:a": "b", "k8s:io.kubernetes.pod.namespace": "default"}
	require.Equal(t, want, ep.Labels)
	require.Equal(t, want, started(t, dir).rows()[0].Labels, "the file has them too")
	revision := r.endpoints.Revision(r.db.ReadTxn())
	_, err = r.SetLabels("1", []string{"user:a=b"})
	require.NoError(t, err)
	require.Equal(t, revision, r.endpoints.Revision(r.db.ReadTxn()), "equal labels write no row")
	for _, bad := range []string{"reserved:host", "k8s:app=x", "nonsense"} {
		_, err = r.SetLabels("1", []string{bad})
		require.ErrorIs(t, err, endpoint.ErrInvalid, bad)
	}
	_, err = r.SetLabels("2", nil)
	require.ErrorIs(t, err, endpoint.ErrNotFound)
	ep, err = r.SetLabels("1", nil)
	require.NoError(t, err)
	require.Len(t, ep.Labels, 1)
}

func TestFollowPods_LabelsFollowPodAndNamespace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := started(t, t.TempDir())
		_, err := r.Create(t.Context(), request(1))
		require.NoError(t, err)
		health, _ := cell.NewSimpleHealth()
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- r.followPods(ctx, health) }()
		synctest.Wait()
		require.Empty(t, r.rows()[0].Labels)

		r.setPod(t, &k8s.Pod{Namespace: "default", Name: "pod-1", UID: "uid-1"})
		waitSettled()
		require.Equal(t, map[string]string{"k8s:io.kubernetes.pod.namespace": "default"}, r.rows()[0].Labels)

		r.setNamespace(t, &k8s.Namespace{Name: "default", Labels: map[string]string{"team": "a"}})
		waitSettled()
		require.Equal(t, "a", r.rows()[0].Labels["k8s:io.cilium.k8s.namespace.labels.team"])
		cancel()
		require.NoError(t, <-ended)
	})
}

func waitSettled() {
	time.Sleep(2 * settleLabels)
	synctest.Wait()
}
