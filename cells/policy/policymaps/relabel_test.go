package policymaps

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// TestRelabel_RevokedAccess_IsCut: pods lose the label by which a policy allows them. The project promises 3 s from the change of the pod to the end of
// its access. This test covers the part from the labels of the endpoint to the slot in the kernel, which takes the grace period of the cell identityallocator, 1 s,
// and no other delay. The parts before take up to 20 ms from the event to its table (k8s-tables) and 50 ms to the endpoint's row (endpoint-manager). After
// the slot the maps are written without a delay (endpoint-maps). Each of these parts has a test of its own.
func TestRelabel_RevokedAccess_IsCut(t *testing.T) {
	t.Parallel()
	const grace, slack = time.Second, 20 * time.Millisecond
	for name, c := range map[string]struct {
		pods        int
		server      func(*testing.T, *kubetest.Server) // nil without Kubernetes
		unavailable bool                               // the agent already knows that no server answers
		within      time.Duration
	}{
		"without Kubernetes":                    {1, nil, false, slack},
		"the server responds":                   {1, func(*testing.T, *kubetest.Server) {}, false, slack},
		"more pods than objects a second":       {100, func(*testing.T, *kubetest.Server) {}, false, grace + slack},
		"the server is slow":                    {1, slow(3 * time.Second), false, grace + slack},
		"the server hangs":                      {1, slow(time.Hour), false, grace + slack},
		"the server rejects":                    {1, func(_ *testing.T, s *kubetest.Server) { s.Deny("create", kubeapi.CiliumIdentities) }, false, slack},
		"the server is known to be unreachable": {1, slow(time.Hour), true, slack},
		"all of 100 pods, slow server":          {100, slow(3 * time.Second), false, grace + slack},
		"all of 100 pods, unreachable server":   {100, slow(time.Hour), true, slack},
		"all of 100, and no Kubernetes":         {100, nil, false, slack},
		"all of 100, and the server hangs":      {100, slow(time.Hour), false, grace + slack},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var client *kubeapi.Client
				var server *kubetest.Server
				if c.server != nil {
					server = kubetest.New(t, kubetest.InMemory())
					client = server.Client(t)
				}
				const subject, first = 7, 8
				pod := func(id int, labels map[string]string) *k8s.Pod {
					return &k8s.Pod{Namespace: "shop", Name: fmt.Sprint("pod-", id), UID: fmt.Sprint(id), Labels: labels}
				}
				k := newWatchedKernel()
				a, _ := startAgent(t, k, client, t.TempDir(), func(a *agent) {
					insert(a.DB, a.Namespaces, &k8s.Namespace{Name: "shop"})
					insert(a.DB, a.Policies, &k8s.NetworkPolicy{Namespace: "shop", Name: "p", IsIngress: true,
						PodSelector: k8s.Selector{MatchLabels: map[string]string{"app": "server"}},
						Ingress:     []k8s.PolicyRule{{Peers: []k8s.Peer{{Pods: &k8s.Selector{MatchLabels: map[string]string{"app": "client"}}}}}}})
					for id := subject; id < first+c.pods; id++ {
						app := "client"
						if id == subject {
							app = "server"
						}
						insert(a.DB, a.Pods, pod(id, map[string]string{"app": app}))
						insert(a.DB, a.Endpoints, &endpoints.Endpoint{ID: uint16(id), ContainerID: fmt.Sprint(id), IfName: "eth0", HostIfIndex: id,
							K8sNamespace: "shop", K8sPodName: fmt.Sprint("pod-", id), K8sUID: fmt.Sprint(id)})
						a.relabel(uint16(id))
					}
					for _, table := range []string{"k8s-pods", "k8s-namespaces", "k8s-networkpolicies", "cilium-networkpolicies"} {
						insert(a.DB, a.Sources, sources.Source{Table: table, State: sources.Synced})
					}
				})
				allowed := func() (n int) {
					synctest.Wait()
					for id := first; id < first+c.pods; id++ {
						if k.allows(question{uint16(id), subject, whole}) {
							n++
						}
					}
					return n
				}
				time.Sleep(time.Minute)
				if n := allowed(); n != c.pods {
					t.Fatalf("%d of %d pods are allowed at first", n, c.pods)
				}
				if c.server != nil {
					c.server(t, server)
				}
				if c.unavailable {
					insert(a.DB, a.Servers, apiservers.Server{Server: "https://192.0.2.1", Active: true, Reachable: apiservers.No})
				}
				for id := first; id < first+c.pods; id++ { // each pod gets labels of its own
					insert(a.DB, a.Pods, pod(id, map[string]string{"app": fmt.Sprint("other-", id)}))
					a.relabel(uint16(id))
				}
				time.Sleep(c.within)
				if n := allowed(); n > 0 {
					t.Fatalf("%d of %d pods are still allowed after %v", n, c.pods, c.within)
				}
				for range 300 { // a later response of the server allows no pod
					time.Sleep(100 * time.Millisecond)
					if n := allowed(); n > 0 {
						t.Fatalf("%d of %d pods are allowed again", n, c.pods)
					}
				}
			})
		})
	}
}

// slow makes the server respond to requests that create objects after a delay.
func slow(delay time.Duration) func(*testing.T, *kubetest.Server) {
	return func(t *testing.T, s *kubetest.Server) {
		s.Fault(func(r *http.Request) (int, string) {
			if r.Method == http.MethodPost {
				select {
				case <-time.After(delay):
				case <-t.Context().Done():
				}
			}
			return 0, ""
		})
	}
}
