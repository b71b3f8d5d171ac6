package reflectors

import (
	"net/http"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

// An agent that is newer than its permissions works without optional objects.
func TestSync_OptionalObjectsForbidden(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		server.Deny("list", kubeapi.CiliumCIDRGroups)
		path := filepath.Join(t.TempDir(), "k8s-snapshot")
		r := follow(t, server, Settings{SyncTimeout: 3 * time.Second, Copy: path}, false)
		eventually(t, "all others are there", func() bool { return r.level("sync") == cell.StatusOK })
		time.Sleep(10 * time.Second)
		select {
		case <-r.ended:
			t.Error("it ended")
		default:
		}
		row := r.source("cilium-cidrgroups")
		if !row.Optional || row.Usable() || row.Delays() || !has(row.WaitingFor, "forbidden") {
			t.Errorf("the groups: %+v", row)
		}
		if row := r.source("cilium-networkpolicies"); row.Optional || row.Copy.IsZero() {
			t.Errorf("the policies: %+v", row)
		}
		if r.level("ciliumcidrgroups") != cell.StatusDegraded {
			t.Error("health does not report that they are missing")
		}
	})
}

// Without its definition a resource has no objects, and rows of a previous run are deleted. When the definition is created, its objects are listed.
func TestSync_OptionalDefinitionMissing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := kubetest.New(t, kubetest.InMemory())
		undefined := func(plural string) kubetest.Fault {
			return func(request *http.Request) (int, string) {
				if has(request.URL.Path, plural) {
					return http.StatusNotFound, ""
				}
				return 0, ""
			}
		}
		group := &ciliumv2.CiliumCIDRGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Spec: ciliumv2.CIDRGroupSpec{ExternalCIDRs: []string{"192.0.2.0/24"}}}
		server.Fault(undefined("ciliumcidrgroups"))
		server.Put(group)
		path := filepath.Join(t.TempDir(), "k8s-snapshot")
		r := follow(t, server, Settings{Copy: path}, false)
		r.synced(t)
		if len(r.keys("cilium-cidrgroups")) != 0 || r.level("ciliumcidrgroups") != cell.StatusDegraded {
			t.Errorf("groups %v, %v", r.keys("cilium-cidrgroups"), r.level("ciliumcidrgroups"))
		}
		server.Fault(nil)
		r.becomesSame(t, server)
		eventually(t, "all is well", func() bool { return len(r.health.degraded()) == 0 })
		r.stop() // writes a copy

		server.Fault(undefined("ciliumcidrgroups"))
		again := follow(t, server, Settings{Copy: path}, false)
		again.synced(t)
		if len(again.keys("cilium-cidrgroups")) != 0 {
			t.Errorf("groups %v", again.keys("cilium-cidrgroups"))
		}
		again.stop()

		// The agent waits for required tables.
		server.Fault(undefined("ciliumnodes"))
		waits := follow(t, server, Settings{SyncTimeout: 3 * time.Second}, false)
		<-waits.ended
		if row := waits.source("cilium-nodes"); !row.Delays() {
			t.Errorf("the nodes: %+v", row)
		}
	})
}
