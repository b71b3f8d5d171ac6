package endpointstate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

func TestNotice_ReportsReasonForLocalIdentity(t *testing.T) {
	t.Parallel()
	own := identity.ProvisionalScope + 1
	require.Empty(t, notice(&endpoints.Endpoint{}, observation{identity: 300}))
	require.Equal(t, "its identity is local to this node until the cluster has one for its labels", notice(&endpoints.Endpoint{}, observation{identity: own}))
	require.Equal(t, "its identity is local to this node until the cluster has one for its labels: all are taken",
		notice(&endpoints.Endpoint{}, observation{identity: own, why: "all are taken"}))
}
