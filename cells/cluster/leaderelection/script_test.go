package leaderelection

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/cilium/hive/cell"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	celltest.Run(t, "testdata/*.txtar", func(t testing.TB) []cell.Cell {
		client := kubetest.New(t).Client(t)
		return []cell.Cell{Cell, cell.Provide(func() *kubeapi.Client { return client })}
	})
}

func TestCell_NeedsKubernetes(t *testing.T) {
	h, err := hive.Build(celltest.Infrastructure(), Cell, cell.Provide(func() *kubeapi.Client { return nil }))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	if err := hive.Populate(h, log); err != nil {
		t.Errorf("what there would be cannot be shown: %v", err)
	}
	if err := h.Start(log, t.Context()); err == nil || !strings.Contains(err.Error(), "no API server is known") {
		t.Errorf("without Kubernetes: %v", err)
	}
	if err := h.Stop(log, t.Context()); err != nil {
		t.Error(err)
	}
}
