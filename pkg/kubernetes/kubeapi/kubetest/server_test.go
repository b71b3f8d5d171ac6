package kubetest_test

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func pod(namespace, name, onNode string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{NodeName: onNode}}
}

// reflect starts a reflector and returns its store.
func reflect(t *testing.T, client *kubeapi.Client, r kubeapi.Resource, tweak func(*metav1.ListOptions)) cache.Store {
	t.Helper()
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	reflector := cache.NewReflectorWithOptions(client.ListWatch(r, "", tweak), r.New(), store,
		cache.ReflectorOptions{Name: t.Name(), MinWatchTimeout: time.Minute,
			Backoff: &wait.Backoff{Duration: 10 * time.Millisecond, Cap: 100 * time.Millisecond, Steps: 10, Factor: 2}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		reflector.RunWithContext(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return store
}

func has(store cache.Store, keys ...string) func() bool {
	return func() bool {
		got := store.ListKeys()
		slices.Sort(got)
		return slices.Equal(got, keys)
	}
}

// eventually polls for a change in a reflector's store, which does not wake the server.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	timeout := time.After(time.Minute)
	for !condition() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatal(what)
		}
	}
}

func TestReflector_FollowsTheServer(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*kubetest.Server){
		"list then watch": func(*kubetest.Server) {},
		"watch list":      (*kubetest.Server).EnableWatchList,
		"doubled events":  (*kubetest.Server).DoubleEvents,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := kubetest.New(t)
			prepare(s)
			s.Put(pod("default", "a", "one"), pod("default", "b", "two"))
			store := reflect(t, s.Client(t), kubeapi.Pods, func(o *metav1.ListOptions) { o.FieldSelector = "spec.nodeName=one" })
			eventually(t, "the pod of the node is listed", has(store, "default/a"))

			s.Put(pod("default", "c", "one"), pod("other", "d", "two"))
			eventually(t, "a new pod arrives", has(store, "default/a", "default/c"))
			s.Put(pod("default", "b", "one"))
			eventually(t, "a pod that is scheduled to the node arrives", has(store, "default/a", "default/b", "default/c"))
			s.Put(pod("default", "c", "two"))
			s.Remove(kubeapi.Pods, "default", "a")
			eventually(t, "pods that left are gone", has(store, "default/b"))

			s.Compact()
			s.Put(pod("default", "e", "one"))
			eventually(t, "expired versions are listed again", has(store, "default/b", "default/e"))

			s.Stop()
			s.Remove(kubeapi.Pods, "default", "e")
			s.Put(pod("default", "f", "one"))
			s.Start(t)
			eventually(t, "what changed while the server was down arrives", has(store, "default/b", "default/f"))
		})
	}
}

func TestEmptyLists_QuorumReadsAreRight(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(node("one"))
	s.EmptyLists(kubeapi.Nodes, 1)
	client := s.Client(t)
	for _, step := range []struct {
		version string
		want    int
	}{{"", 1}, {"0", 0}, {"0", 1}} {
		var list corev1.NodeList
		if err := client.List(t.Context(), kubeapi.Nodes, "", metav1.ListOptions{ResourceVersion: step.version}, &list); err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != step.want {
			t.Errorf("a list with resourceVersion %q has %d items, want %d", step.version, len(list.Items), step.want)
		}
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(node("a"), node("b"), node("c"))
	client := s.Client(t)
	var names []string
	options := metav1.ListOptions{Limit: 2}
	for {
		var list corev1.NodeList
		if err := client.List(t.Context(), kubeapi.Nodes, "", options, &list); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	if !slices.Equal(names, []string{"a", "b", "c"}) {
		t.Errorf("the pages hold %v", names)
	}
	var list corev1.NodeList
	_ = client.List(t.Context(), kubeapi.Nodes, "", metav1.ListOptions{Limit: 2}, &list)
	s.Compact()
	if err := client.List(t.Context(), kubeapi.Nodes, "", metav1.ListOptions{Limit: 2, Continue: list.Continue}, &list); !apierrors.IsResourceExpired(err) {
		t.Errorf("a page after compaction: %v", err)
	}
}

func TestWrites(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	client, ctx := s.Client(t), t.Context()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "leader"}}
	var made coordinationv1.Lease
	if err := client.Create(ctx, kubeapi.Leases, "kube-system", lease, &made); err != nil {
		t.Fatal(err)
	}
	if made.UID == "" || made.ResourceVersion == "" || made.Namespace != "kube-system" || made.CreationTimestamp.IsZero() {
		t.Errorf("the created object is %+v", made.ObjectMeta)
	}
	if err := client.Create(ctx, kubeapi.Leases, "kube-system", lease, nil); !apierrors.IsAlreadyExists(err) {
		t.Errorf("created twice: %v", err)
	}
	stale := made.DeepCopy()
	holder := "me"
	made.Spec.HolderIdentity = &holder
	if err := client.Update(ctx, kubeapi.Leases, "kube-system", &made, &made); err != nil {
		t.Fatal(err)
	}
	if err := client.Update(ctx, kubeapi.Leases, "kube-system", stale, nil); !apierrors.IsConflict(err) {
		t.Errorf("an update of an old version: %v", err)
	}
	wrong := types.UID("wrong")
	if err := client.Delete(ctx, kubeapi.Leases, "kube-system", "leader", &metav1.Preconditions{UID: &wrong}); !apierrors.IsConflict(err) {
		t.Errorf("deleted against its precondition: %v", err)
	}
	if err := client.Delete(ctx, kubeapi.Leases, "kube-system", "leader", &metav1.Preconditions{UID: &made.UID}); err != nil {
		t.Error(err)
	}
	if err := client.Get(ctx, kubeapi.Leases, "kube-system", "leader", &made); !apierrors.IsNotFound(err) {
		t.Errorf("after the deletion: %v", err)
	}
}

func TestUpdate_OfACustomResourceNeedsAVersion(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(&ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
	client := s.Client(t)
	n := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: ciliumv2.NodeSpec{BootID: "x"}}
	if err := client.Update(t.Context(), kubeapi.CiliumNodes, "", n, nil); !apierrors.IsInvalid(err) {
		t.Errorf("updated without a resourceVersion: %v", err)
	}
	var current ciliumv2.CiliumNode
	s.Get(kubeapi.CiliumNodes, "", "one", &current)
	n.ResourceVersion = current.ResourceVersion
	if err := client.Update(t.Context(), kubeapi.CiliumNodes, "", n, n); err != nil {
		t.Fatal(err)
	}
	before := n.ResourceVersion
	if err := client.Update(t.Context(), kubeapi.CiliumNodes, "", n, n); err != nil || n.ResourceVersion != before {
		t.Errorf("an update without a change made version %s of %s: %v", n.ResourceVersion, before, err)
	}
}

func TestPatches(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	client, ctx := s.Client(t), t.Context()
	n := node("one")
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Spec.Taints = []corev1.Taint{{Key: "a"}, {Key: "b"}}
	s.Put(n)
	var got corev1.Node
	for _, p := range []struct {
		kind        types.PatchType
		data        string
		subresource []string
	}{
		{types.StrategicMergePatchType, `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False"}]},"spec":{"podCIDR":"10.0.0.0/8"}}`, []string{"status"}},
		{types.MergePatchType, `{"metadata":{"annotations":{"k":"v","gone":null}},"status":{"phase":"Running"}}`, nil},
		{types.JSONPatchType, `[{"op":"test","path":"/spec/taints","value":[{"key":"a","effect":""},{"key":"b","effect":""}]},` +
			`{"op":"replace","path":"/spec/taints","value":[{"key":"b","effect":""}]},{"op":"add","path":"/metadata/annotations/x~1y","value":"z"}]`, nil},
	} {
		if err := client.Patch(ctx, kubeapi.Nodes, "", "one", p.kind, []byte(p.data), &got, p.subresource...); err != nil {
			t.Fatalf("%s: %v", p.kind, err)
		}
	}
	if len(got.Status.Conditions) != 2 || got.Spec.PodCIDR != "" || got.Status.Phase != "" {
		t.Errorf("a status and the rest were mixed up: %+v %+v", got.Spec, got.Status)
	}
	if got.Annotations["k"] != "v" || got.Annotations["x/y"] != "z" || len(got.Annotations) != 2 || len(got.Spec.Taints) != 1 {
		t.Errorf("patched: %+v %+v", got.Annotations, got.Spec.Taints)
	}
	failed := []byte(`[{"op":"test","path":"/spec/taints","value":[]},{"op":"remove","path":"/spec"}]`)
	if err := client.Patch(ctx, kubeapi.Nodes, "", "one", types.JSONPatchType, failed, nil); !apierrors.IsInvalid(err) {
		t.Errorf("a JSON patch whose test fails: %v", err)
	}
}

func TestFaultsAndRequests(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(node("one"))
	client, ctx := s.Client(t), t.Context()
	s.Fault(func(r *http.Request) (int, string) {
		if r.Method == http.MethodGet {
			return http.StatusInternalServerError, ""
		}
		return 0, ""
	})
	if err := client.Get(ctx, kubeapi.Nodes, "", "one", &corev1.Node{}); !apierrors.IsInternalError(err) {
		t.Errorf("a fault: %v", err)
	}
	s.Fault(nil)
	s.Deny("get", kubeapi.Nodes)
	if err := client.Get(ctx, kubeapi.Nodes, "", "one", &corev1.Node{}); !apierrors.IsForbidden(err) {
		t.Errorf("denied: %v", err)
	}
	s.RequireToken("secret")
	if err := client.Delete(ctx, kubeapi.Nodes, "", "one", nil); !apierrors.IsUnauthorized(err) {
		t.Errorf("without the token: %v", err)
	}
	if err := s.Client(t).Delete(ctx, kubeapi.Nodes, "", "one", nil); err != nil {
		t.Errorf("with the token: %v", err)
	}
	for _, r := range s.Requests() {
		if r.Resource != "nodes" || r.Name != "one" || r.UserAgent != "kubetest" {
			t.Errorf("recorded %+v", r)
		}
	}
}

// TestMetadataOnly checks that only metadata is sent for pods, which are many.
func TestMetadataOnly(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Put(pod("default", "a", "one"), &ciliumv2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}})
	for _, r := range []kubeapi.Resource{kubeapi.Pods.MetadataOnly(), kubeapi.CiliumEndpoints.MetadataOnly()} {
		var list metav1.PartialObjectMetadataList
		if err := s.Client(t).List(t.Context(), r, "", metav1.ListOptions{}, &list); err != nil {
			t.Fatal(err)
		}
		var one metav1.PartialObjectMetadata
		if err := s.Client(t).Get(t.Context(), r, "default", "a", &one); err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 1 || list.Items[0].UID == "" || one.UID != list.Items[0].UID {
			t.Errorf("%s: listed %+v, got %+v", r, list.Items, one)
		}
	}
}

func TestBookmarksAndMetadata(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	crd := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "ciliumnodes.cilium.io", Labels: map[string]string{"v": "1"}}}
	s.Put(crd)
	client := s.Client(t)
	var list metav1.PartialObjectMetadataList
	if err := client.List(t.Context(), kubeapi.CustomResourceDefinitions, "", metav1.ListOptions{}, &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || list.Items[0].Labels["v"] != "1" {
		t.Errorf("listed %+v", list.Items)
	}
	w, err := client.Watch(t.Context(), kubeapi.CustomResourceDefinitions, "", metav1.ListOptions{ResourceVersion: list.ResourceVersion, AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	s.Put(node("one"))
	s.Bookmark(kubeapi.CustomResourceDefinitions)
	e := <-w.ResultChan()
	if mark, ok := e.Object.(metav1.Object); e.Type != "BOOKMARK" || !ok || mark.GetResourceVersion() == list.ResourceVersion {
		t.Errorf("the bookmark is %+v", e)
	}
}
