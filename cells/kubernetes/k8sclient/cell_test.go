package k8sclient

import (
	"context"
	"log/slog"
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/hivetest"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
)

// agent is a hive with only this cell.
type agent struct {
	db     *statedb.DB
	table  statedb.Table[apiservers.Server]
	client *kubeapi.Client
}

// newAgent builds and starts a hive, which needs no reachable server.
func newAgent(t *testing.T, flags ...string) *agent {
	t.Helper()
	a := &agent{}
	h := hive.New(celltest.Infrastructure(), Cell, cell.Invoke(
		func(db *statedb.DB, table statedb.Table[apiservers.Server], client *kubeapi.Client) {
			a.db, a.table, a.client = db, table, client
		}))
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(set)
	if err := set.Parse(flags); err != nil {
		t.Fatal(err)
	}
	start(t, h)
	return a
}

func start(t *testing.T, h *upstream.Hive) {
	t.Helper()
	log := hivetest.Logger(t, hivetest.LogLevel(slog.LevelError))
	if err := h.Start(log, t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Stop(log, context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// await waits until the row of server satisfies condition.
func (a *agent) await(t *testing.T, server string, condition func(apiservers.Server) bool) {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		row, _, changed, _ := a.table.GetWatch(a.db.ReadTxn(), apiservers.ByServer(server))
		if condition(row) {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("waited in vain; the row is %+v", row)
		}
	}
}

func inUse(s apiservers.Server) bool {
	return s.Active && s.Reachable == apiservers.Yes && s.Error == ""
}

func TestCell_FailsOverAndBack(t *testing.T) {
	t.Parallel()
	first := kubetest.New(t)
	second := first.Replica(t)
	second.Stop()
	a := newAgent(t, "--k8s-api-server="+first.Address()+","+second.Address())
	a.await(t, first.URL(), inUse)

	first.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
	var node corev1.Node
	if err := a.client.Get(t.Context(), kubeapi.Nodes, "", "one", &node); err != nil {
		t.Fatal(err)
	}
	first.Stop()
	_ = a.client.Get(t.Context(), kubeapi.Nodes, "", "one", &node) // this request detects the outage
	a.await(t, first.URL(), func(s apiservers.Server) bool { return s.Reachable == apiservers.No && s.Error != "" })
	second.Start(t)
	a.await(t, second.URL(), inUse)
	if err := a.client.Get(t.Context(), kubeapi.Nodes, "", "one", &node); err != nil {
		t.Error(err)
	}
}

func TestCell_StartsBeforeTheAPIServer(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Stop()
	a := newAgent(t, "--k8s-api-server="+s.Address())
	a.await(t, s.URL(), func(s apiservers.Server) bool { return s.Active && s.Reachable == apiservers.No })
	s.Start(t)
	a.await(t, s.URL(), inUse)
}
