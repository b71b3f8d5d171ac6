// Package daemon composes the agent from cells. The execution order follows from the initialization of tables, not from the order of these lists.
package daemon

import (
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/cells/agent/apiserver"
	"github.com/waggle-net/waggle/cells/agent/cniconf"
	"github.com/waggle-net/waggle/cells/agent/configreport"
	"github.com/waggle-net/waggle/cells/agent/driftledger"
	"github.com/waggle-net/waggle/cells/agent/healthreport"
	"github.com/waggle-net/waggle/cells/agent/healthz"
	"github.com/waggle-net/waggle/cells/agent/liveness"
	"github.com/waggle-net/waggle/cells/agent/metrics"
	"github.com/waggle-net/waggle/cells/agent/pprof"
	"github.com/waggle-net/waggle/cells/agent/selftest"
	"github.com/waggle-net/waggle/cells/agent/shell"
	"github.com/waggle-net/waggle/cells/datapath/basedevices"
	"github.com/waggle-net/waggle/cells/datapath/ctgc"
	"github.com/waggle-net/waggle/cells/datapath/deviceobserver"
	"github.com/waggle-net/waggle/cells/datapath/ipmasqagent"
	"github.com/waggle-net/waggle/cells/datapath/loader"
	"github.com/waggle-net/waggle/cells/datapath/maps"
	"github.com/waggle-net/waggle/cells/datapath/masquerademaps"
	"github.com/waggle-net/waggle/cells/datapath/monitor"
	"github.com/waggle-net/waggle/cells/datapath/mtu"
	"github.com/waggle-net/waggle/cells/datapath/neighborlimitcheck"
	"github.com/waggle-net/waggle/cells/datapath/nodefirewall"
	"github.com/waggle-net/waggle/cells/datapath/overlay"
	"github.com/waggle-net/waggle/cells/datapath/routereconciler"
	"github.com/waggle-net/waggle/cells/datapath/sysctl"
	"github.com/waggle-net/waggle/cells/endpoint/ciliumendpoints"
	"github.com/waggle-net/waggle/cells/endpoint/endpointmanager"
	"github.com/waggle-net/waggle/cells/endpoint/endpointmaps"
	"github.com/waggle-net/waggle/cells/endpoint/endpointstate"
	"github.com/waggle-net/waggle/cells/endpoint/ipamallocator"
	"github.com/waggle-net/waggle/cells/endpoint/linkreaper"
	"github.com/waggle-net/waggle/cells/endpoint/podmtu"
	"github.com/waggle-net/waggle/cells/endpoint/unmanagedpodfinder"
	"github.com/waggle-net/waggle/cells/identity/identityallocator"
	"github.com/waggle-net/waggle/cells/identity/ipcachemaps"
	"github.com/waggle-net/waggle/cells/identity/synchostips"
	"github.com/waggle-net/waggle/cells/kubernetes/crdcheck"
	"github.com/waggle-net/waggle/cells/kubernetes/k8sclient"
	"github.com/waggle-net/waggle/cells/kubernetes/k8stables"
	"github.com/waggle-net/waggle/cells/node/ciliumnode"
	"github.com/waggle-net/waggle/cells/node/k8snode"
	"github.com/waggle-net/waggle/cells/node/localnodecontroller"
	"github.com/waggle-net/waggle/cells/node/nodeaddressfinder"
	"github.com/waggle-net/waggle/cells/node/nodecidr"
	"github.com/waggle-net/waggle/cells/node/nodehealthprober"
	"github.com/waggle-net/waggle/cells/node/nodeidallocator"
	"github.com/waggle-net/waggle/cells/node/nodelist"
	"github.com/waggle-net/waggle/cells/node/nodemaps"
	"github.com/waggle-net/waggle/cells/node/noderoutes"
	"github.com/waggle-net/waggle/cells/node/pathtest"
	"github.com/waggle-net/waggle/cells/policy/policymaps"
	"github.com/waggle-net/waggle/cells/service/servicecontroller"
	"github.com/waggle-net/waggle/cells/service/servicehealth"
	"github.com/waggle-net/waggle/cells/service/servicemaps"
	"github.com/waggle-net/waggle/cells/service/socketlb"
	"github.com/waggle-net/waggle/cells/service/sockterm"
	"github.com/waggle-net/waggle/pkg/agentconfig"
)

// Agent lists the cells of the node role.
var Agent = cell.Group(
	Infrastructure,
	ControlPlane,
	Datapath,
	Interfaces,
)

// Infrastructure lists the cells that all other cells use.
var Infrastructure = cell.Group(
	statedb.Cell, // the tables
	job.Cell,     // named background jobs
	agentconfig.Cell,
	configreport.Cell,
	healthreport.Cell,
	liveness.Cell,
	driftledger.Cell,
	metrics.Cell,
	pprof.Cell,
	k8sclient.Cell,
	crdcheck.Cell,
)

// ControlPlane lists the cells that convert Kubernetes objects, CNI requests and files into desired rows.
var ControlPlane = cell.Group(
	k8stables.Cell,
	nodecidr.Cell,
	ipamallocator.Cell,
	localnodecontroller.Cell,
	nodelist.Cell,
	nodeidallocator.Cell,
	ciliumnode.Cell,
	endpointmanager.Cell,
	identityallocator.Cell,
	policymaps.Cell,
	servicecontroller.Cell,
	endpointstate.Cell,
	ciliumendpoints.Cell,
	unmanagedpodfinder.Cell,
	selftest.Cell,
	k8snode.Cell,
)

// Datapath lists the cells that observe the kernel and write desired rows into it.
var Datapath = cell.Group(
	deviceobserver.Cell,
	nodeaddressfinder.Cell,
	mtu.Cell,
	podmtu.Cell,
	basedevices.Cell,
	routereconciler.Cell,
	noderoutes.Cell,
	overlay.Cell,
	sysctl.Cell,
	maps.Cell,
	ipcachemaps.Cell,
	nodemaps.Cell,
	endpointmaps.Cell,
	synchostips.Cell,
	ipmasqagent.Cell,
	masquerademaps.Cell,
	servicemaps.Cell,
	socketlb.Cell,
	loader.Cell,
	ctgc.Cell,
	sockterm.Cell,
	linkreaper.Cell,
	nodefirewall.Cell,
	neighborlimitcheck.Cell,
	monitor.Cell,
)

// Interfaces lists the cells with external interfaces. They are last, so that their start hooks run after all others.
var Interfaces = cell.Group(
	healthz.Cell,
	servicehealth.Cell,
	nodehealthprober.Cell,
	pathtest.Cell,
	shell.Cell,
	apiserver.Cell,
	cniconf.Cell,
)
