package daemon

import (
	"log/slog"
	"testing"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/hive"
)

// TestCluster_Populates builds every object of the cluster role without privileges. TestMain checks for leaked goroutines.
func TestCluster_Populates(t *testing.T) {
	h, err := hive.Build(Cluster)
	if err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	if err := flags.Parse([]string{"--k8s-api-server=127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	if err := hive.Populate(h, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"state-dir", "bpf-root", "node-name"} {
		if flags.Lookup(flag) != nil {
			t.Errorf("the cluster role has --%s, though it has nothing of a node", flag)
		}
	}
}
