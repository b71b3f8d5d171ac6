package servicestatus

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/leaderwork"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func service(name string, annotations map[string]string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: annotations},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}}
}

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		s := kubetest.New(t, kubetest.InMemory())
		s.Put(service("plain", map[string]string{"service.cilium.io/type": "ClusterIP", "other": "x"}),
			service("global", map[string]string{"service.cilium.io/global": "true", "service.cilium.io/forwarding-mode": "dsr"}))
		headless := service("headless", map[string]string{"service.cilium.io/global": "true"})
		headless.Spec.ClusterIP, headless.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
		others := service("others", map[string]string{"service.cilium.io/global": "true"})
		others.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
		s.Put(headless, others)
		var failures atomic.Int32
		failures.Store(1)
		s.Fault(func(r *http.Request) (int, string) {
			if r.Method == http.MethodPost && failures.Add(-1) >= 0 {
				return http.StatusInternalServerError, ""
			}
			return 0, ""
		})
		return []cell.Cell{Cell, cell.Provide(func() *kubeapi.Client { return s.Client(t) }),
			cell.Provide(leadership.NewTable, statedb.RWTable[leadership.Leadership].ToTable),
			cell.Provide(func() upstream.ScriptCmdsOut { return s.Commands(t) })}
	})
}

// newTestEmitter returns an emitter with a client of the API server s, and a function that sets the end of its lease.
func newTestEmitter(t *testing.T, s *kubetest.Server) (*emitter, func(until time.Time)) {
	db := statedb.New()
	leader, err := leadership.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	lead := func(until time.Time) {
		txn := db.WriteTxn(leader)
		if _, _, err := leader.Insert(txn, leadership.Leadership{Lease: "x", Until: until}); err != nil {
			t.Fatal(err)
		}
		txn.Commit()
	}
	return newEmitter(params{Log: slog.New(slog.DiscardHandler), DB: db, Leadership: leader, Client: s.Client(t)}), lead
}

// A replica without the lease creates no Events. The Event names the Service and has a message of bounded length; messages that differ only after the bound are
// one Event.
func TestEmitter(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	emitter, lead := newTestEmitter(t, s)
	lead(time.Time{})
	one := &statement{Namespace: "shop", Name: "web", UID: "u", Message: strings.Repeat("\x1b[2J", 1000)}
	if err := emitter.Update(t.Context(), nil, 0, one); !errors.Is(err, leaderwork.ErrNotLeading) || len(s.List(kubeapi.Events)) != 0 {
		t.Errorf("without the lease: %v", err)
	}
	lead(time.Now().Add(time.Hour))
	for range 2 {
		if err := emitter.Update(t.Context(), nil, 0, one); err != nil {
			t.Error(err)
		}
		emitter.last = map[string]emitted{} // like another replica
		one.Message += "!"
	}
	events := s.List(kubeapi.Events)
	if len(events) != 1 {
		t.Fatalf("%d Events", len(events))
	}
	e := events[0].(*corev1.Event)
	if e.Type != corev1.EventTypeWarning || e.Reason != EventReason || e.InvolvedObject.Kind != "Service" || e.InvolvedObject.APIVersion != "v1" ||
		e.InvolvedObject.UID != "u" || e.Namespace != "shop" || len(e.Message) > 1024 || strings.Contains(e.Message, "\x1b") {
		t.Errorf("the Event is %+v", e)
	}
}

// A Service has at most one Event in five minutes, however often its annotations change. Entries of Services without a row are removed after that time.
func TestEmitter_ChangesInALoop_OneEventInFiveMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := kubetest.New(t, kubetest.InMemory())
		emitter, lead := newTestEmitter(t, s)
		lead(time.Now().Add(24 * time.Hour))
		began := time.Now()
		for i := 0; time.Since(began) < time.Hour; i++ {
			row := &statement{Namespace: "shop", Name: "web", UID: fmt.Sprint(i), Message: fmt.Sprint(i)}
			if err := emitter.Update(t.Context(), nil, 0, row); err != nil {
				t.Fatal(err)
			}
			if err := emitter.Delete(t.Context(), nil, 0, row); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n := len(s.List(kubeapi.Events)); n != 12 {
			t.Errorf("%d Events in an hour", n)
		}
		time.Sleep(2 * between)
		_ = emitter.Delete(t.Context(), nil, 0, &statement{Namespace: "shop", Name: "other"})
		if len(emitter.last) != 0 {
			t.Errorf("remembered: %v", emitter.last)
		}
	})
}

// An Event that the API server rejects is not an error. It is retried after five minutes.
func TestEmitter_RejectedEvents_AreNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	for _, code := range []int{http.StatusForbidden, http.StatusUnprocessableEntity} {
		synctest.Test(t, func(t *testing.T) {
			s := kubetest.New(t, kubetest.InMemory())
			s.Fault(func(r *http.Request) (int, string) {
				if r.Method == http.MethodPost {
					return code, ""
				}
				return 0, ""
			})
			emitter, lead := newTestEmitter(t, s)
			lead(time.Now().Add(24 * time.Hour))
			posts := func() (n int) {
				for _, r := range s.Requests() {
					if r.Verb == "create" {
						n++
					}
				}
				return n
			}
			for want := range 3 {
				for range 4 {
					if err := emitter.Update(t.Context(), nil, 0, &statement{Namespace: "shop", Name: "web", UID: "u", Message: "m"}); err != nil {
						t.Errorf("%d: %v", code, err)
					}
					time.Sleep(time.Minute)
				}
				if n := posts(); n != want+1 {
					t.Errorf("%d: %d requests, want %d", code, n, want+1)
				}
				time.Sleep(between)
			}
		})
	}
}
