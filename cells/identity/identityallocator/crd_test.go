package identityallocator

import (
	"fmt"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// A pod may have labels of a megabyte. Errors about them are in health and thus in every status, so they must be short.
func TestCRD_ManyLabels_ErrorIsShort(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	crds, err := cilium.NewIdentityTable(db)
	require.NoError(t, err)
	servers, err := apiservers.NewTable(db)
	require.NoError(t, err)
	want, err := newWantedTable(db)
	require.NoError(t, err)
	c := newController(params{DB: db, CRDs: crds, Servers: servers, Wanted: want, Client: kubetest.New(t).Client(t),
		Settings: agentconfig.Agent{StateDir: t.TempDir()}})
	huge := set{labels: map[string]string{}, partial: true}
	for i := range 5000 {
		huge.labels[fmt.Sprint("k8s:label-", i)] = "value"
	}
	out := c.choose(db.ReadTxn(), input{}, cilium.LabelsKey(huge.labels), huge, time.Now())
	require.Error(t, out.problem)
	require.Less(t, len(out.problem.Error()), 500)
}
