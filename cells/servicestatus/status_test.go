package servicestatus

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/leadership"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func service(name string, annotations map[string]string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: annotations},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}}
}

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		s := kubetest.New(t)
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

// A replica that lost the lease says nothing, even what it had begun. The Event names the Service, and is bounded however much is wrong.
func TestTeller(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
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
	lead(time.Time{})
	teller := &teller{params{DB: db, Leadership: leader, Client: s.Client(t)}}
	one := &statement{Namespace: "shop", Name: "web", UID: "u", Message: strings.Repeat("\x1b[2J", 1000)}
	if err := teller.Update(t.Context(), nil, 0, one); !errors.Is(err, leadership.ErrNotLeading) || len(s.List(kubeapi.Events)) != 0 {
		t.Errorf("without the lease: %v", err)
	}
	lead(time.Now().Add(time.Hour))
	for range 2 {
		if err := teller.Update(t.Context(), nil, 0, one); err != nil {
			t.Error(err)
		}
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
