package kubeapi_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

// follow runs a follower of nodes until the test ends.
func follow(t *testing.T, s *kubetest.Server, replace func([]string)) {
	f := kubeapi.Follower[string]{Client: s.Client(t), Resource: kubeapi.Nodes,
		Read: func(o runtime.Object) (string, error) {
			m, err := meta.Accessor(o)
			if err != nil {
				return "", err
			}
			return m.GetName(), nil
		},
		Replace: func(names []string) error { replace(names); return nil },
		Apply:   func(watch.EventType, string) error { return nil }}
	background(t, func(ctx context.Context) {
		if err := f.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("the follower ended: %v", err)
		}
	})
}

// TestFollower_FailingWatches_ListsArePaced: if each watch fails because changes are lost, the follower lists less and less often, down to once a
// minute, and again after a second once watches have lasted.
func TestFollower_FailingWatches_ListsArePaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := kubetest.New(t, kubetest.InMemory())
		s.Put(node("one"))
		failing := func(r *http.Request) (int, string) {
			if r.URL.Query().Get("watch") == "" {
				return 0, ""
			}
			return http.StatusGone, ""
		}
		s.Fault(failing)
		var lists []time.Time
		follow(t, s, func([]string) { lists = append(lists, time.Now()) })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		// 1, 2, 4, 8, 16 and 32 s, then one minute each.
		if n := len(lists); n < 12 || n > 16 {
			t.Errorf("%d lists in ten minutes", n)
		}
		s.Fault(nil)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		n := len(lists)
		s.Fault(failing)
		s.Compact() // open watches see it
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if len(lists) < n+2 {
			t.Errorf("%d lists in five seconds after watches that lasted", len(lists)-n)
		}
	})
}
