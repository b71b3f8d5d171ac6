package unmanagedpodfinder

import (
	"testing"
	"time"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/unmanagedpods"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.Run(t, "testdata/*.txtar", func(testing.TB) []cell.Cell {
		return []cell.Cell{Cell, agentconfig.Cell, cell.Module("inputs", "Tables that other cells write",
			cell.Provide(newPods, statedb.RWTable[*k8s.Pod].ToTable, endpoints.NewTable, statedb.RWTable[*endpoints.Endpoint].ToTable))}
	})
}

// newPods creates the table of pods and a command that completes it.
func newPods(db *statedb.DB) (statedb.RWTable[*k8s.Pod], upstream.ScriptCmdOut, error) {
	pods, err := k8s.NewPodTable(db)
	if err != nil {
		return nil, upstream.ScriptCmdOut{}, err
	}
	txn := db.WriteTxn(pods)
	defer txn.Commit()
	done := pods.RegisterInitializer(txn, "test")
	return pods, upstream.NewScriptCmd("pods/complete", script.Command(script.CmdUsage{Summary: "All pods are there"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			txn := db.WriteTxn(pods)
			defer txn.Commit()
			done(txn)
			return nil, nil
		})), nil
}

// The endpoint of an ending pod is deleted shortly before the pod. The pod must not be reported as unmanaged in this time.
func TestCompute_TerminatingPod_IsNotUnmanaged(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	pods, err := k8s.NewPodTable(db)
	require.NoError(t, err)
	eps, err := endpoints.NewTable(db)
	require.NoError(t, err)
	table, err := unmanagedpods.NewTable(db)
	require.NoError(t, err)
	c := newController(params{DB: db, Pods: pods, Endpoints: eps, Unmanaged: table, Settings: agentconfig.Agent{NodeName: "bee"}})
	now := time.Unix(1000, 0)
	want, again := c.compute(db.ReadTxn(), now)
	require.Empty(t, want)
	require.Zero(t, again)

	txn := db.WriteTxn(pods)
	_, _, err = pods.Insert(txn, &k8s.Pod{Namespace: "a", Name: "b", Phase: "Running"})
	require.NoError(t, err)
	txn.Commit()
	want, again = c.compute(db.ReadTxn(), now)
	require.Empty(t, want)
	require.Equal(t, hold, again)
	want, _ = c.compute(db.ReadTxn(), now.Add(again))
	require.Len(t, want, 1, "and one that stays is")
}
