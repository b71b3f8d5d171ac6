package reflectors

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// CiliumEndpoints are read until the cluster role marks slices as complete. No pod is missing during the change in either direction.
func TestSlices_Incomplete_CiliumEndpointsAreRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cluster(t)
		foreign := sliceOf(t, server, "of-cilium", "w2")
		foreign.Labels, foreign.Endpoints[0].Name = nil, "unknown"
		server.Put(sliceOf(t, server, "s1", "w2"), foreign)
		r := follow(t, server, Settings{Slices: true}, false)
		r.synced(t)
		r.becomesSame(t, server)
		r.stay(t, "mine", "w2", "w3", "w4")
		time.Sleep(slicesTimeout + tick)
		if r.level("slices") != cell.StatusDegraded {
			t.Error("it is not said that slices are missing")
		}

		server.Put(sliceOf(t, server, "s1", "mine", "w2", "w3"), sliceOf(t, server, "s2", "w4"), sliceOf(t, server, ciliumv2.CompleteSlice))
		eventually(t, "CiliumEndpoints of others are not followed any more", func() bool { return !r.everything() })
		if rows := r.keys("cilium-endpoints-listed"); len(rows) > 0 {
			t.Errorf("rows are left: %v", rows)
		}
		r.becomesSame(t, server)
		server.Put(endpointOn("two", "w5", 5)) // the cluster role is slow
		time.Sleep(tick)
		if r.identity("w5") != 0 || r.level("slices") != cell.StatusOK {
			t.Errorf("w5 has %d, slices %v", r.identity("w5"), r.level("slices"))
		}

		// The option of the cluster role is turned off.
		before := whole(server)
		server.Remove(kubeapi.CiliumEndpointSlices, "", ciliumv2.CompleteSlice)
		server.Remove(kubeapi.CiliumEndpointSlices, "", "s1")
		server.Remove(kubeapi.CiliumEndpointSlices, "", "s2")
		time.Sleep(leaveJitter)
		r.has(t, "w5", 5)
		r.becomesSame(t, server)
		if whole(server) == before || !r.everything() {
			t.Error("CiliumEndpoints are not followed")
		}
		server.Put(endpointOn("two", "w5", 55))
		r.becomesSame(t, server)
	})
}

// Agents with rows do not list all CiliumEndpoints at the same time when slices stop being complete.
func TestSlices_Incomplete_AgentsListStaggered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cluster(t)
		server.Put(sliceOf(t, server, "s1", "mine", "w2", "w3"), sliceOf(t, server, "s2", "w4"), sliceOf(t, server, ciliumv2.CompleteSlice))
		var agents []*rig
		for range 12 {
			r := follow(t, server, Settings{Slices: true}, false)
			r.synced(t)
			r.becomesSame(t, server)
			r.stay(t, "mine", "w2", "w3", "w4")
			agents = append(agents, r)
		}
		server.Remove(kubeapi.CiliumEndpointSlices, "", ciliumv2.CompleteSlice)
		server.Remove(kubeapi.CiliumEndpointSlices, "", "s2")
		time.Sleep(leaveJitter + time.Second)
		var listed []time.Time
		for _, r := range agents {
			if !r.everything() {
				t.Fatal("an agent does not follow all CiliumEndpoints")
			}
			listed = append(listed, r.source("cilium-endpoints-listed").Since)
		}
		slices.SortFunc(listed, time.Time.Compare)
		if spread := listed[len(listed)-1].Sub(listed[0]); spread < 10*time.Second {
			t.Errorf("%d agents list all CiliumEndpoints within %v", len(agents), spread)
		}
	})
}

// While slices are not complete any more and CiliumEndpoints are not listed yet, slices add and change rows, and rows of pods of this node are added
// and deleted. When slices are complete again, the rows that slices no longer have are deleted.
func TestSlices_IncompleteAndCompleteAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cluster(t)
		server.Put(sliceOf(t, server, "s1", "mine", "w2", "w3", "w4"), sliceOf(t, server, ciliumv2.CompleteSlice))
		r := follow(t, server, Settings{Slices: true}, false)
		r.synced(t)
		r.becomesSame(t, server)
		server.Fault(func(q *http.Request) (int, string) {
			if strings.HasSuffix(q.URL.Path, "ciliumendpoints") && !strings.Contains(q.URL.RawQuery, "labelSelector") {
				return http.StatusServiceUnavailable, ""
			}
			return 0, ""
		})
		server.Remove(kubeapi.CiliumEndpointSlices, "", ciliumv2.CompleteSlice)
		time.Sleep(time.Second)
		server.Remove(kubeapi.CiliumEndpoints, "a", "w4")
		server.Remove(kubeapi.CiliumEndpoints, "a", "mine")
		server.Put(endpointOn("two", "w2", 22), endpointOn("two", "w5", 5), endpointOn("one", "new", 6))
		server.Put(sliceOf(t, server, "s1", "w2", "w3", "w5", "new"))
		r.has(t, "w2", 22)
		r.has(t, "w5", 5)
		r.has(t, "new", 6)
		r.has(t, "mine", 0)
		time.Sleep(2 * leaveJitter)
		r.has(t, "w4", 4)
		server.Put(sliceOf(t, server, ciliumv2.CompleteSlice))
		r.has(t, "w4", 0)
		r.becomesSame(t, server)
		server.Fault(nil)
		time.Sleep(time.Minute)
		if r.everything() {
			t.Error("all CiliumEndpoints are followed")
		}
		r.becomesSame(t, server)
	})
}

// A pod with a CiliumEndpoint is never missing when slices stop being complete while CiliumEndpoints cannot be listed.
func TestSlices_IncompleteDuringOutage_KeepRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := cluster(t)
		server.Put(sliceOf(t, server, "s1", "mine", "w2", "w3", "w4"), sliceOf(t, server, ciliumv2.CompleteSlice))
		r := follow(t, server, Settings{Slices: true}, false)
		r.synced(t)
		r.stay(t, "mine", "w2", "w3", "w4")
		server.Fault(func(q *http.Request) (int, string) {
			if strings.HasSuffix(q.URL.Path, "ciliumendpoints") && !strings.Contains(q.URL.RawQuery, "labelSelector") {
				return http.StatusServiceUnavailable, ""
			}
			return 0, ""
		})
		server.Remove(kubeapi.CiliumEndpointSlices, "", ciliumv2.CompleteSlice)
		server.Remove(kubeapi.CiliumEndpointSlices, "", "s1")
		time.Sleep(5 * time.Minute)
		server.Fault(nil)
		server.Remove(kubeapi.CiliumEndpoints, "a", "w9")
		eventually(t, "CiliumEndpoints are followed", r.everything)
		r.becomesSame(t, server)
	})
}

// The option changes between two runs, and the server answers late: the rows of the copy stay until the lists of this run are complete.
func TestSlices_OptionChanged_KeepsRowsOfCopy(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]bool{"switched on": false, "switched off": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := cluster(t)
				server.Put(sliceOf(t, server, "s1", "mine", "w2", "w3", "w4"), sliceOf(t, server, ciliumv2.CompleteSlice))
				path := filepath.Join(t.TempDir(), "k8s-snapshot")
				r := follow(t, server, Settings{Slices: first, Copy: path}, false)
				r.synced(t)
				r.becomesSame(t, server)
				r.stop() // writes a copy

				server.Fault(func(q *http.Request) (int, string) {
					if strings.Contains(q.URL.Path, "cilium.io") {
						return http.StatusServiceUnavailable, ""
					}
					return 0, ""
				})
				again := follow(t, server, Settings{Slices: !first, Copy: path}, false)
				again.stay(t, "mine", "w2", "w3", "w4")
				time.Sleep(slicesTimeout + tick)
				if row := again.source(remoteTable); row.State != sources.Snapshot || row.WaitingFor == sources.FirstList {
					t.Errorf("source %+v", row)
				}
				server.Fault(nil)
				again.synced(t)
				again.becomesSame(t, server)
			})
		})
	}
}
