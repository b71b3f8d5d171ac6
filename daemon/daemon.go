// Package daemon composes the agent from cells, by domain. The execution order follows from the initialization of tables, not from the order of these lists.
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
	"github.com/waggle-net/waggle/cells/policy/policyevents"
	"github.com/waggle-net/waggle/cells/policy/policymaps"
	"github.com/waggle-net/waggle/cells/service/servicecontroller"
	"github.com/waggle-net/waggle/cells/service/servicehealth"
	"github.com/waggle-net/waggle/cells/service/servicemaps"
	"github.com/waggle-net/waggle/cells/service/socketlb"
	"github.com/waggle-net/waggle/cells/service/sockterm"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/podpools"
)

// Agent lists the cells of the node role. Kubernetes precedes Datapath for speed alone: start hooks run one after the other, and the hook that loads the programs
// takes about as long as the first lists, which the API server sends meanwhile.
var Agent = cell.Group(
	Infrastructure,
	Endpoint,
	Identity,
	Policy,
	Service,
	Node,
	Kubernetes,
	Datapath,
	Interfaces,
)

// Infrastructure lists the cells that all other cells use.
var Infrastructure = cell.Group(
	statedb.Cell, // the tables
	job.Cell,     // named background jobs
	agentconfig.Cell,
	podpools.Cell,
	configreport.Cell,
	healthreport.Cell,
	liveness.Cell,
	driftledger.Cell,
	metrics.Cell,
	pprof.Cell,
	k8sclient.Cell,
	crdcheck.Cell,
)

// Endpoint lists the domain endpoint, which attaches pods: their addresses, links and states.
var Endpoint = cell.Group(
	ipamallocator.Cell,
	endpointmanager.Cell,
	endpointmaps.Cell,
	endpointstate.Cell,
	ciliumendpoints.Cell,
	unmanagedpodfinder.Cell,
	podmtu.Cell,
	linkreaper.Cell,
)

// Identity lists the domain identity, which assigns security identities to labels and addresses.
var Identity = cell.Group(
	identityallocator.Cell,
	ipcachemaps.Cell,
	synchostips.Cell,
)

// Policy lists the domain policy, which compiles network policies into the entries of the maps.
var Policy = cell.Group(
	policymaps.Cell,
	policyevents.Cell,
)

// Service lists the domain service, which balances services: at packets and at sockets.
var Service = cell.Group(
	servicecontroller.Cell,
	servicemaps.Cell,
	socketlb.Cell,
	sockterm.Cell,
)

// Node lists the domain node, which knows this node and the other nodes of the cluster.
var Node = cell.Group(
	nodecidr.Cell,
	localnodecontroller.Cell,
	nodeaddressfinder.Cell,
	nodelist.Cell,
	nodeidallocator.Cell,
	nodemaps.Cell,
	noderoutes.Cell,
	ciliumnode.Cell,
	k8snode.Cell,
)

// Datapath lists the domain datapath, which observes the kernel, and writes links, routes, maps and programs.
var Datapath = cell.Group(
	deviceobserver.Cell,
	mtu.Cell,
	basedevices.Cell,
	routereconciler.Cell,
	overlay.Cell,
	sysctl.Cell,
	maps.Cell,
	ipmasqagent.Cell,
	masquerademaps.Cell,
	loader.Cell,
	ctgc.Cell,
	nodefirewall.Cell,
	neighborlimitcheck.Cell,
	monitor.Cell,
)

// Kubernetes lists the domain kubernetes, which reads the objects of Kubernetes.
var Kubernetes = cell.Group(
	k8stables.Cell,
)

// Interfaces lists the domain agent, except the cells of Infrastructure, and the cells of other domains that reply to requests from outside. They are last, so
// that their start hooks run after all others.
var Interfaces = cell.Group(
	servicehealth.Cell,
	nodehealthprober.Cell,
	pathtest.Cell,
	selftest.Cell,
	healthz.Cell,
	shell.Cell,
	apiserver.Cell,
	cniconf.Cell,
)
