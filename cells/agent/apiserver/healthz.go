package apiserver

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/readiness"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/cniconfig"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/version"
)

// GetHealthz returns the status of the agent.
func (a *api) GetHealthz(w http.ResponseWriter, _ *http.Request, p models.GetHealthzParams) {
	k8s := p.RequireK8SConnectivity
	respond(w, http.StatusOK, a.status(a.DB.ReadTxn(), k8s == nil || *k8s, or(p.Brief)))
}

// status returns the status of the agent, and unless brief is set the status of each of its parts. With withKubernetes, a source of Kubernetes objects that is
// not usable is a failure.
func (a *api) status(txn statedb.ReadTxn, withKubernetes, brief bool) models.StatusResponse {
	verdict := readiness.Evaluate(txn, a.Ready)
	if !withKubernetes {
		verdict.Sources = nil
	}
	state, message := verdict.Summary(version.String())
	s := models.StatusResponse{
		Cilium:     models.Status{State: models.StatusState(state), Msg: message},
		Cluster:    models.ClusterStatus{CiliumHealth: a.clusterHealth(txn)},
		Encryption: models.EncryptionStatus{Mode: models.EncryptionStatusModeDisabled}, // cilium-dbg encrypt status needs it in a brief reply, too
		Agent:      agentState(verdict),
	}
	if !brief {
		a.describe(txn, &s)
	}
	return s
}

// clusterHealth reports how many nodes this node reaches. As in Cilium, the state is the prober's own state: it is Ok even if a node is unreachable.
func (a *api) clusterHealth(txn statedb.ReadTxn) models.Status {
	if !a.Settings.HealthChecking {
		return models.Status{State: models.StatusStateDisabled, Msg: "nodes are not probed"}
	}
	return models.Status{State: models.StatusStateOk, Msg: nodehealth.Summarize(txn, a.Nodes, a.NodeHealth).String()}
}

// controllers returns the prober of nodes under the name by which cilium-dbg finds out that nodes are probed.
func (a *api) controllers(txn statedb.ReadTxn) []models.ControllerStatus {
	if !a.Settings.HealthChecking {
		return nil
	}
	var last time.Time
	for path := range a.NodeHealth.All(txn) {
		if at := path.LastProbe(); at.After(last) {
			last = at
		}
	}
	return []models.ControllerStatus{{Name: "cilium-health-ep", Status: models.ControllerStatusStatus{LastSuccessTimestamp: last}}}
}

// describe sets the fields that a brief reply omits.
func (a *api) describe(txn statedb.ReadTxn, s *models.StatusResponse) {
	s.Kubernetes = a.kubernetes(txn)
	s.CNIFile = a.cniFile(txn)
	s.DatapathMode = models.StatusResponseDatapathModeVeth
	s.AttachMode = models.StatusResponseAttachModeTc
	s.IPAM = a.ipamStatus(txn)
	s.KubeProxyReplacement = a.kubeProxy(txn)
	s.Masquerading = a.masquerading(txn)
	s.Routing = a.routing()
	s.Controllers = a.controllers(txn)
	s.Cluster.Self = a.nodeName(txn)
	s.Cluster.Nodes = a.nodeElements(txn, statedb.Collect(a.Nodes.All(txn)))
	for m := range a.Maps.All(txn) {
		s.BPFMaps.Maps = append(s.BPFMaps.Maps, models.BPFMapProperties{Name: m.Name, Size: int64(m.MaxEntries)})
	}
	for pod := range a.Unmanaged.All(txn) {
		s.UnmanagedPods = append(s.UnmanagedPods, pod.Key())
	}
	for h := range a.Ready.Health.All(txn) {
		s.Modules = append(s.Modules, models.ModuleHealth{
			ID: strings.Join(h.Path(), "."), Level: models.ModuleHealthLevel(h.Level), Message: h.Message, Error: h.Error,
			UpdatedAt: h.UpdatedAt,
		})
	}
}

// routing returns how packets reach pods. As in Cilium, the mode within the host is Legacy when the stack forwards packets between pods of different nodes;
// programs redirect packets between pods of this node in either mode.
func (a *api) routing() models.Routing {
	s := models.Routing{IntraHostRoutingMode: models.RoutingIntraHostRoutingModeBPF, InterHostRoutingMode: models.RoutingInterHostRoutingModeNative}
	if a.Settings.Tunnel() {
		s.InterHostRoutingMode = models.RoutingInterHostRoutingModeTunnel
		s.TunnelProtocol = agentconfig.ProtocolVXLAN
	}
	if a.Settings.Hybrid {
		s.InterHostRoutingMode = models.RoutingInterHostRoutingModeHybrid
	}
	if a.Settings.HostLegacyRouting {
		s.IntraHostRoutingMode = models.RoutingIntraHostRoutingModeLegacy
	}
	return s
}

// kubernetes summarizes the active API server, if any, and the sources of Kubernetes objects.
func (a *api) kubernetes(txn statedb.ReadTxn) models.K8SStatus {
	server, failure := a.apiServer(txn)
	var producers, waiting, copied []string
	var since, written time.Time
	tables, why := 0, ""
	for s := range a.Ready.Sources.All(txn) {
		if !slices.Contains(producers, s.Producer) {
			producers = append(producers, s.Producer)
		}
		if s.Optional && !s.Usable() {
			continue // the cell that needs the table reports it
		}
		tables++
		switch s.State {
		case sources.Waiting:
			waiting = append(waiting, s.Table+" since "+s.Since.UTC().Format(time.RFC3339))
		case sources.Snapshot:
			copied, since, why = append(copied, s.Table), s.Since, s.WaitingFor
		}
		if !s.Copy.IsZero() {
			written = s.Copy
		}
	}
	if !written.IsZero() {
		server += "; copy on disk of " + written.UTC().Format(time.RFC3339)
	}
	switch {
	case len(copied) > 0 && len(waiting) == 0:
		which := "all objects"
		if len(copied) < tables {
			which = strings.Join(copied, ", ")
		}
		text := fmt.Sprintf("%s from the copy on disk of %s, since %s", which, written.UTC().Format(time.RFC3339),
			since.UTC().Format(time.RFC3339))
		if written.IsZero() { // manifests have no copy on disk
			text = fmt.Sprintf("%s possibly incomplete since %s: %s", which, since.UTC().Format(time.RFC3339), why)
		}
		return models.K8SStatus{State: models.K8SStatusStateWarning, Msg: strings.TrimSuffix(text+"; "+failure, "; ")}
	case failure != "":
		return models.K8SStatus{State: models.K8SStatusStateFailure, Msg: failure}
	case len(producers) == 0:
		return models.K8SStatus{State: models.K8SStatusStateDisabled}
	case len(waiting) > 0:
		return models.K8SStatus{State: models.K8SStatusStateFailure, Msg: "waiting for " + strings.Join(waiting, ", ")}
	}
	return models.K8SStatus{State: models.K8SStatusStateOk, Msg: "from " + strings.Join(producers, ", ") + server}
}

// apiServer returns the active API server, or its failure. Without Kubernetes both are empty.
func (a *api) apiServer(txn statedb.ReadTxn) (server, failure string) {
	for s := range a.APIServers.All(txn) {
		switch {
		case !s.Active:
		case s.Error != "":
			return "", fmt.Sprintf("%s is unusable since %s: %s", s.Server, s.Since.UTC().Format(time.RFC3339), s.Error)
		case s.Reachable != apiservers.Yes:
			return "", s.Server + " has not responded yet"
		default:
			return ", " + s.Server, ""
		}
	}
	return "", ""
}

// cniFile returns the state of the CNI configuration list.
func (a *api) cniFile(txn statedb.ReadTxn) models.Status {
	for row := range a.CNIConfig.All(txn) {
		switch row.State {
		case cniconfig.Written:
			msg := "written to " + row.Path
			if row.Message != "" {
				msg += "; " + row.Message
			}
			return models.Status{State: models.StatusStateOk, Msg: msg}
		case cniconfig.Waiting:
			return models.Status{State: models.StatusStateWarning, Msg: "not written yet, waiting for " + row.Message}
		case cniconfig.Shadowed, cniconfig.Conflict:
			return models.Status{State: models.StatusStateWarning, Msg: row.Message}
		}
		return models.Status{State: models.StatusStateFailure, Msg: row.Message}
	}
	return models.Status{State: models.StatusStateDisabled, Msg: "CNI configuration management disabled"}
}

// ipamStatus lists the owners of addresses.
func (a *api) ipamStatus(txn statedb.ReadTxn) models.IPAMStatus {
	s := models.IPAMStatus{Allocations: models.StringMap{}}
	for row := range a.Addresses.All(txn) {
		switch row.State {
		case ipamaddresses.Excluded, ipamaddresses.Quarantined:
			continue
		}
		s.Allocations[row.Addr.String()] = row.Owner
		if row.Addr.Is4() {
			s.Ipv4 = append(s.Ipv4, row.Addr.String())
		} else {
			s.Ipv6 = append(s.Ipv6, row.Addr.String())
		}
	}
	s.Status = a.ipamSummary(txn)
	return s
}

// ipamSummary returns for each family the number of used addresses of the node's range. Pods that still have addresses of a previous range use none of this one.
func (a *api) ipamSummary(txn statedb.ReadTxn) string {
	node := a.localNode(txn)
	var parts []string
	for _, f := range []struct {
		name, family string
		from         netip.Prefix
	}{{"IPv4", "ipv4", node.IPv4.AllocRange}, {"IPv6", "ipv6", node.IPv6.AllocRange}} {
		if f.from.IsValid() {
			used := ipam.Count(txn, a.Addresses, f.family, f.from).Used()
			parts = append(parts, fmt.Sprintf("%s: %d/%s allocated from %s", f.name, used, capacity(f.from), f.from))
		}
	}
	return strings.Join(parts, ", ")
}

// capacity returns the number of addresses of a range without its first and last one, as a power of two for large ranges.
func capacity(p netip.Prefix) string {
	bits := p.Addr().BitLen() - p.Bits()
	switch {
	case bits <= 1:
		return fmt.Sprint(1 << bits)
	case bits < 32:
		return fmt.Sprint(uint64(1)<<bits - 2)
	}
	return fmt.Sprintf("2^%d", bits)
}
