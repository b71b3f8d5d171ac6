package daemon

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/cells/agent/configreport"
	"github.com/waggle-net/waggle/cells/agent/healthreport"
	"github.com/waggle-net/waggle/cells/agent/liveness"
	"github.com/waggle-net/waggle/cells/cluster/ciliumendpointslices"
	"github.com/waggle-net/waggle/cells/cluster/clusterhealthz"
	"github.com/waggle-net/waggle/cells/cluster/clusterpool"
	"github.com/waggle-net/waggle/cells/cluster/endpointgc"
	"github.com/waggle-net/waggle/cells/cluster/identitygc"
	"github.com/waggle-net/waggle/cells/cluster/leaderelection"
	"github.com/waggle-net/waggle/cells/kubernetes/k8sclient"
	"github.com/waggle-net/waggle/cells/policy/policystatus"
	"github.com/waggle-net/waggle/cells/service/servicestatus"
)

// Cluster lists the cells of the cluster role. This role needs no privileges, no state on disk and no access to the node. The election is the first of the
// role's cells, so that it stops last.
var Cluster = cell.Group(
	statedb.Cell,
	job.Cell,
	configreport.Cell,
	healthreport.Cell,
	liveness.Cell,
	liveness.Transactions,
	k8sclient.Cell,
	leaderelection.Cell,
	policystatus.Cell,
	servicestatus.Cell,
	clusterpool.Cell,
	endpointgc.Cell,
	identitygc.Cell,
	ciliumendpointslices.Cell,
	clusterhealthz.Cell,
)
