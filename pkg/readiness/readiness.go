// Package readiness computes from tables whether pods can be attached. The API, the health port and the CNI configuration use the same function, so they agree.
package readiness

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/desireddevices"
	"github.com/waggle-net/waggle/pkg/tables/desiredroutes"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/health"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Tables holds the inputs of [Evaluate].
type Tables struct {
	cell.In

	Sources     statedb.Table[sources.Source]
	LocalNode   statedb.Table[*localnode.LocalNode]
	MTUs        statedb.Table[mtus.MTU]
	Endpoints   statedb.Table[*endpoints.Endpoint]
	Attachments statedb.Table[*attachments.Attachment]
	Devices     statedb.Table[*desireddevices.Device]
	Routes      statedb.Table[*desiredroutes.Route]
	Sysctls     statedb.Table[*sysctls.Setting]
	Hosts       statedb.Table[*bpfendpoints.Address]
	Health      statedb.Table[health.Status]

	Reconcilers *watchdog.Monitor `optional:"true"` // absent in tests of cells
}

// Verdict holds one sentence for each problem.
type Verdict struct {
	Sources  []string // sources of Kubernetes objects whose rows must not be used yet
	Missing  []string // other conditions that must be met before pods can be attached
	Degraded []string // failures that are being retried; they do not prevent the attachment of pods
}

// Waiting returns all unmet conditions for the attachment of pods.
func (v Verdict) Waiting() []string { return append(append([]string(nil), v.Sources...), v.Missing...) }

// Ready reports whether pods can be attached.
func (v Verdict) Ready() bool { return len(v.Sources) == 0 && len(v.Missing) == 0 }

// Evaluate evaluates one snapshot. It has no side effects and keeps no state.
func Evaluate(txn statedb.ReadTxn, t Tables) Verdict {
	v := Verdict{Sources: unusable(txn, t.Sources)}
	missing := func(why string) {
		if why != "" {
			v.Missing = append(v.Missing, why)
		}
	}
	if init, _ := t.Endpoints.Initialized(txn); !init {
		missing("the endpoints of the previous run to be restored")
	}
	missing(node(txn, t.LocalNode))
	if _, _, found := t.MTUs.Get(txn, mtus.ByPrefix(mtus.Default)); !found {
		missing("the MTU of the network to be known")
	}
	missing(programs(txn, t.Attachments))
	missing(hostPath(txn, t))
	missing(hosts(txn, t.Hosts))
	if len(v.Missing) == 0 { // otherwise the sentences above may describe the same problems better
		v.Missing = t.Reconcilers.Lagging(txn)
	}
	for s := range t.Health.List(txn, health.ByLevel(health.Degraded)) {
		v.Degraded = append(v.Degraded, degraded(s))
	}
	return v
}

// Watch returns channels of which one closes when [Verdict.Ready] may have changed. Degraded modules do not count.
func (t Tables) Watch(txn statedb.ReadTxn) *statedb.WatchSet {
	set := statedb.NewWatchSet()
	_, sources := t.Sources.AllWatch(txn)
	_, node := t.LocalNode.AllWatch(txn)
	_, mtus := t.MTUs.AllWatch(txn)
	_, attachments := t.Attachments.AllWatch(txn)
	_, devices := t.Devices.AllWatch(txn)
	_, routes := t.Routes.AllWatch(txn)
	_, sysctls := t.Sysctls.AllWatch(txn)
	set.Add(sources, node, mtus, attachments, devices, routes, sysctls)
	if initialized, endpoints := t.Endpoints.Initialized(txn); !initialized {
		set.Add(endpoints)
	}
	if initialized, hosts := t.Hosts.Initialized(txn); !initialized {
		set.Add(hosts)
	}
	t.Reconcilers.Watch(txn, set)
	return set
}

func unusable(txn statedb.ReadTxn, table statedb.Table[sources.Source]) (out []string) {
	for s := range table.All(txn) {
		if !s.Delays() {
			continue
		}
		why := s.WaitingFor
		if why == "" {
			why = "its first list"
		}
		if !s.Since.IsZero() {
			why += " (since " + s.Since.UTC().Format(time.RFC3339) + ")"
		}
		out = append(out, fmt.Sprintf("table %s: %s: %s", s.Table, s.Producer, why))
	}
	return out
}

func node(txn statedb.ReadTxn, table statedb.Table[*localnode.LocalNode]) string {
	for n := range table.All(txn) {
		switch {
		case n.Ready:
			return ""
		case n.WaitingFor != "":
			return n.WaitingFor
		}
	}
	return "the pod CIDR and the router address of this node"
}

// hosts returns a reason until the rows of the node's own addresses are complete for the first time. Until then packets of pods to the node are evaluated as
// packets to the world. [watchdog.Monitor.Lagging] reports rows that are not in the kernel.
func hosts(txn statedb.ReadTxn, table statedb.Table[*bpfendpoints.Address]) string {
	if slices.Contains(table.PendingInitializers(txn), bpfendpoints.HostInitializer) {
		return "the addresses of this node to be complete in the datapath"
	}
	return ""
}

// programs returns the first missing filter of the shared blocks, or "". A pod's link that is attached before the filters forwards no packets.
func programs(txn statedb.ReadTxn, table statedb.Table[*attachments.Attachment]) string {
	blocks := 0
	for a := range table.Prefix(txn, attachments.ByKind(attachments.Block)) {
		blocks++
		if why := pending(fmt.Sprintf("program %s on %s", a.Program, a.Device), a.Status); why != "" {
			return why
		}
	}
	if blocks == 0 {
		return "the datapath's programs to be loaded"
	}
	return ""
}

// degradedBytes is the maximum length of a failure in the summary, in bytes. The table health has the complete text.
const degradedBytes = 300

// degraded formats a status in one line: joined errors and errors of the verifier have several lines.
func degraded(s health.Status) string {
	name := s.Module
	if s.Component != "" {
		name += "." + s.Component
	}
	text := name + ": " + s.Message
	if s.Error != "" {
		text += ": " + s.Error
	}
	text = strings.ReplaceAll(text, "\n", "; ")
	if len(text) > degradedBytes {
		return strings.ToValidUTF8(text[:degradedBytes], "") + "..."
	}
	return text
}

// named is the maximum number of degraded modules in the summary. One cause, such as an unreachable API server, degrades many modules.
const named = 3

// Summary formats the verdict in one line. state is Ok, Warning while a module is degraded, or Failure while pods cannot be attached.
func (v Verdict) Summary(version string) (state, message string) {
	switch {
	case !v.Ready():
		return "Failure", version + ": waiting for " + strings.Join(v.Waiting(), "; ")
	case len(v.Degraded) > 0:
		first := v.Degraded[:min(named, len(v.Degraded))]
		message = version + ": degraded: " + strings.Join(first, "; ")
		if more := len(v.Degraded) - len(first); more > 0 {
			message += fmt.Sprintf("; and %d more, see the table health", more)
		}
		return "Warning", message
	}
	return "Ok", version
}
