package apiserver

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/readiness"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/version"
)

// options returns Cilium's mutable options with their fixed values. None can be changed.
func (a *api) options() models.StringMap {
	verdicts := "Enabled"
	if enabled, given := a.Flags["bpf-events-policy-verdict-enabled"].(bool); given && !enabled {
		verdicts = "Disabled"
	}
	return models.StringMap{
		"ConntrackAccounting": "Enabled", "Debug": "Disabled", "DebugLB": "Disabled", "DebugPolicy": "Disabled",
		"DropNotification": "Enabled", "MonitorAggregationLevel": "None", "PolicyAccounting": "Disabled",
		"PolicyAuditMode": "Disabled", "PolicyVerdictNotification": verdicts, "SourceIPVerification": "Enabled",
		"TraceNotification": "Disabled",
	}
}

// unchanged returns an error if an option is unknown or has another value than the current one.
func (a *api) unchanged(wanted models.StringMap) error {
	current := a.options()
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		value, known := current[name]
		if !known {
			return fmt.Errorf("options.%s: there is no such option that can be changed", clip(name))
		}
		if wanted[name] != value {
			return fmt.Errorf("options.%s: is %s and cannot be changed while the agent runs", name, value)
		}
	}
	return nil
}

// GetConfig also replies while the agent starts; the field agent reports its state. With the header "Prefer: return=minimal" (RFC 7240) the reply omits flags
// and options, which take the CNI plugin longer to parse than the rest of the reply.
func (a *api) GetConfig(w http.ResponseWriter, r *http.Request) {
	txn := a.DB.ReadTxn()
	mtu, _, _ := a.Ready.MTUs.Get(txn, mtus.ByPrefix(mtus.Default))
	mode, _ := a.Flags["ipam"].(string)
	config := models.DaemonConfiguration{
		Status: models.DaemonConfigurationStatus{
			Addressing:   a.addressing(txn),
			DeviceMTU:    mtu.DeviceMTU,
			RouteMTU:     mtu.RouteMTU,
			DatapathMode: models.DaemonConfigurationStatusDatapathModeVeth,
			IPAMMode:     mode,
			Agent:        agentState(readiness.Evaluate(txn, a.Ready)),
		},
	}
	if !prefersMinimal(r) {
		config.Spec = models.DaemonConfigurationSpec{Options: a.options(), PolicyEnforcement: a.policyEnforcement()}
		config.Status.Realized, config.Status.DaemonConfigurationMap = config.Spec, a.Flags
	}
	respond(w, http.StatusOK, config)
}

// prefersMinimal reports whether the client prefers a reply without the parts that the CNI plugin does not read.
func prefersMinimal(r *http.Request) bool { return r.Header.Get("Prefer") == "return=minimal" }

// policyEnforcement returns the mode of --enable-policy.
func (a *api) policyEnforcement() models.DaemonConfigurationSpecPolicyEnforcement {
	return models.DaemonConfigurationSpecPolicyEnforcement(a.Policy.Options.Mode)
}

// PatchConfig accepts only requests that change nothing.
func (a *api) PatchConfig(w http.ResponseWriter, r *http.Request) {
	body, ok := readBody[models.DaemonConfigurationSpec](w, r)
	if !ok {
		return
	}
	err := a.unchanged(body.Options)
	if p := body.PolicyEnforcement; err == nil && p != "" && p != a.policyEnforcement() {
		err = fmt.Errorf("policy-enforcement: is %s and cannot be changed while the agent runs; set --enable-policy", a.policyEnforcement())
	}
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	respond(w, http.StatusOK, nil)
}

func agentState(v readiness.Verdict) models.AgentState {
	state := models.AgentStateStateReady
	switch {
	case !v.Ready():
		state = models.AgentStateStateStarting
	case len(v.Degraded) > 0:
		state = models.AgentStateStateDegraded
	}
	return models.AgentState{State: state, WaitingFor: v.Waiting(), Version: version.String()}
}

// localNode returns the row of this node, or a row with only its name while the table is empty.
func (a *api) localNode(txn statedb.ReadTxn) *localnode.LocalNode {
	for n := range a.Ready.LocalNode.All(txn) {
		return n
	}
	return &localnode.LocalNode{Name: a.Settings.NodeName}
}

// addressing returns the enabled families with the gateway and range of each, for the CNI plugin.
func (a *api) addressing(txn statedb.ReadTxn) models.NodeAddressing {
	node := a.localNode(txn)
	family := func(enabled bool, f localnode.Family) models.NodeAddressingElement {
		return models.NodeAddressingElement{Enabled: enabled, IP: text(f.Router), AllocRange: text(f.AllocRange)}
	}
	return models.NodeAddressing{Ipv4: family(a.Settings.EnableIPv4, node.IPv4), Ipv6: family(a.Settings.EnableIPv6, node.IPv6)}
}

// elements converts addresses to elements of the node model.
func elements(addrs []netip.Addr) []models.NodeAddressingElement {
	out := make([]models.NodeAddressingElement, 0, len(addrs))
	for _, addr := range addrs {
		out = append(out, models.NodeAddressingElement{Enabled: true, IP: addr.String()})
	}
	return out
}
