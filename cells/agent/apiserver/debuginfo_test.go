package apiserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"testing"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/datapath/cgroups"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// ask sends a request to the complete handler and decodes the reply.
func ask[T any](t *testing.T, f *fixture, path string, header ...string) (out T) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	for _, name := range header {
		r.Header.Set(name, "true")
	}
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestHealthz_Brief_HasEncryption: cilium-dbg encrypt status requests a brief reply, and crashes without this part.
func TestHealthz_Brief_HasEncryption(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, header := range [][]string{nil, {"brief"}} {
		status := ask[map[string]any](t, f, "/v1/healthz", header...)
		if want := map[string]any{"mode": "Disabled"}; !reflect.DeepEqual(status["encryption"], want) {
			t.Errorf("%v: got %v, want %v", header, status["encryption"], want)
		}
	}
}

// TestDebuginfo compares the parts with the replies of the single paths. cilium-dbg debuginfo reads the status and the policy without a check for nil.
func TestDebuginfo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	info := ask[map[string]any](t, f, "/v1/debuginfo")
	for part, path := range map[string]string{"cilium-status": "/v1/healthz", "endpoint-list": "/v1/endpoint", "service-list": "/v1/service", "policy": "/v1/policy"} {
		if want := ask[any](t, f, path); !reflect.DeepEqual(info[part], want) {
			t.Errorf("%s: got %v, want what GET %s says: %v", part, info[part], path, want)
		}
	}
	if flags := []any{"ipam:kubernetes"}; info["kernel-version"] == "" || info["cilium-version"] == "" || !reflect.DeepEqual(info["environment-variables"], flags) {
		t.Errorf("kernel %v, version %v, flags %v", info["kernel-version"], info["cilium-version"], info["environment-variables"])
	}
}

// TestCgroups: the groups belong to this node's pods; a static pod has the UID that kubelet assigned.
func TestCgroups(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	db := statedb.New() // the fixture's database already has a table of this name
	f.api.Policy.Pods = filled(t, db, k8s.NewPodTable,
		&k8s.Pod{Namespace: "shop", Name: "web", UID: "u1", NodeName: "node-1", PodIPs: []netip.Addr{netip.MustParseAddr("10.0.1.7")}},
		&k8s.Pod{Namespace: "shop", Name: "far", UID: "u2", NodeName: "node-2"},
		&k8s.Pod{Namespace: "kube-system", Name: "etcd", UID: "u3", StaticUID: "s3", NodeName: "node-1"})
	group := func(uid string, ids ...uint64) cgroups.Pod {
		p := cgroups.Pod{UID: uid}
		for _, id := range ids {
			p.Containers = append(p.Containers, cgroups.Container{ID: id, Path: "kubepods/pod" + uid + "/c"})
		}
		return p
	}
	got := f.api.cgroupsOf(db.ReadTxn(), "/cg", []cgroups.Pod{group("s3", 30), group("u1", 10, 11), group("u2", 20), group("u3", 31), group("gone", 40)})
	want := models.CgroupDumpMetadata{PodMetadatas: []models.CgroupPodMetadata{
		{Name: "etcd", Namespace: "kube-system", Containers: []models.CgroupContainerMetadata{{CgroupID: 30, CgroupPath: "/cg/kubepods/pods3/c"}}},
		{Name: "web", Namespace: "shop", Ips: []string{"10.0.1.7"}, Containers: []models.CgroupContainerMetadata{
			{CgroupID: 10, CgroupPath: "/cg/kubepods/podu1/c"}, {CgroupID: 11, CgroupPath: "/cg/kubepods/podu1/c"}}}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestCgroups_WithoutRoot checks that the reply has an error text.
func TestCgroups_WithoutRoot(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.api.Flags["cgroup-root"] = t.TempDir()
	f.handler = newHandler(f.api)
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/cgroup-dump-metadata", nil))
	var text string
	if err := json.Unmarshal(w.Body.Bytes(), &text); err != nil || w.Code != http.StatusInternalServerError || text == "" {
		t.Errorf("%d %s: %v", w.Code, w.Body, err)
	}
}
