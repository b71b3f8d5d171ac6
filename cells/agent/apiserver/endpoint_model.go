package apiserver

import (
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/policyexplain"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// view reads all tables from one snapshot.
type view struct {
	*api
	txn    statedb.ReadTxn
	policy *policyexplain.View
}

func (a *api) view() view {
	txn := a.DB.ReadTxn()
	return view{a, txn, a.Policy.At(txn)}
}

// state returns the state of an endpoint. An endpoint without a state row was just created.
func (v view) state(id uint16) *endpointstates.EndpointState {
	if s, _, found := v.States.Get(v.txn, endpointstates.ByID(id)); found {
		return s
	}
	return &endpointstates.EndpointState{ID: id, State: endpointstates.WaitingForIdentity}
}

// endpoint returns the model of an endpoint and its state.
func (v view) endpoint(ep *endpoints.Endpoint) models.Endpoint {
	state, number := v.state(ep.ID), v.identity(ep)
	return models.Endpoint{
		ID:   int64(ep.ID),
		Spec: v.endpointSpec(ep),
		Status: models.EndpointStatus{
			ExternalIdentifiers: identifiers(ep),
			Identity:            number,
			Labels:              labelStatus(ep, number.Labels),
			Realized:            v.endpointSpec(ep),
			Networking:          v.networking(ep),
			Policy:              v.policyOf(ep),
			Log:                 newest(history(state)),
			State:               models.EndpointState(stateOf(ep, state)),
			Health:              healthOf(state),
		},
	}
}

// identity returns the identity of an endpoint; the zero value without one.
func (v view) identity(ep *endpoints.Endpoint) models.Identity {
	row, found := identities.Of(v.txn, v.EndpointIdentities, ep.ID, ep.AttachmentID())
	if !found {
		return models.Identity{}
	}
	return models.Identity{ID: int64(row.Identity), Labels: identities.List(row.Labels)}
}

func stateOf(ep *endpoints.Endpoint, state *endpointstates.EndpointState) endpointstates.State {
	if ep.Quarantine != "" {
		return endpointstates.Invalid
	}
	return state.State
}

func (a *api) endpointSpec(ep *endpoints.Endpoint) models.EndpointConfigurationSpec {
	return models.EndpointConfigurationSpec{
		Options:            a.options(),
		LabelConfiguration: models.LabelConfigurationSpec{User: labelsFrom(ep, isUsers)},
	}
}

func identifiers(ep *endpoints.Endpoint) models.EndpointIdentifiers {
	return models.EndpointIdentifiers{
		CNIAttachmentID: ep.AttachmentID(),
		ContainerID:     ep.ContainerID,
		PodName:         ep.PodName(),
		K8SPodName:      ep.K8sPodName,
		K8SNamespace:    ep.K8sNamespace,
	}
}

func (v view) networking(ep *endpoints.Endpoint) models.EndpointNetworking {
	return models.EndpointNetworking{
		Addressing: []models.AddressPair{{
			Ipv4: text(ep.IPv4), Ipv4PoolName: ep.IPv4Pool, Ipv6: text(ep.IPv6), Ipv6PoolName: ep.IPv6Pool,
		}},
		HostAddressing:         v.addressing(v.txn),
		HostMAC:                ep.HostMAC.String(),
		MAC:                    ep.PodMAC.String(),
		InterfaceName:          ep.HostIfName,
		InterfaceIndex:         int64(ep.HostIfIndex),
		ContainerInterfaceName: ep.IfName,
	}
}

// policyOf returns the policy that the kernel has. Desired and realized policy are equal, because no row has a desired policy that is not in the kernel.
func (v view) policyOf(ep *endpoints.Endpoint) models.EndpointPolicyStatus {
	policy := v.policy.EndpointPolicy(ep)
	return models.EndpointPolicyStatus{Spec: policy, Realized: policy}
}

// healthOf maps the state to Cilium's health values.
func healthOf(state *endpointstates.EndpointState) models.EndpointHealth {
	overall := models.EndpointHealthStatusFailure
	switch state.State {
	case endpointstates.Ready:
		overall = models.EndpointHealthStatusOK
	case endpointstates.WaitingForIdentity, endpointstates.Restoring:
		overall = models.EndpointHealthStatusBootstrap
	case endpointstates.WaitingToRegenerate, endpointstates.Regenerating:
		overall = models.EndpointHealthStatusPending
	case endpointstates.Disconnecting, endpointstates.Disconnected:
		overall = models.EndpointHealthStatusDisabled
	}
	if state.Error != "" && overall != models.EndpointHealthStatusDisabled {
		overall = models.EndpointHealthStatusFailure
	}
	return models.EndpointHealth{
		OverallHealth: overall, BPF: overall, Policy: overall, Connected: state.State == endpointstates.Ready,
	}
}

// history returns the log of an endpoint, newest entry first.
func history(state *endpointstates.EndpointState) []models.EndpointStatusChange {
	out := make([]models.EndpointStatusChange, 0, len(state.Log))
	for _, e := range slices.Backward(state.Log) {
		code := models.EndpointStatusChangeCodeOk
		if e.Failed {
			code = models.EndpointStatusChangeCodeFailed
		}
		out = append(out, models.EndpointStatusChange{
			Timestamp: e.Time.UTC().Format(time.RFC3339), Code: code, Message: e.Message, State: models.EndpointState(e.State),
		})
	}
	return out
}

// newest returns the single log entry that the status of an endpoint contains.
func newest(log []models.EndpointStatusChange) []models.EndpointStatusChange {
	return log[:min(len(log), 1)]
}

func labelStatus(ep *endpoints.Endpoint, relevant []string) models.LabelConfigurationStatus {
	return models.LabelConfigurationStatus{
		Realized:         models.LabelConfigurationSpec{User: labelsFrom(ep, isUsers)},
		SecurityRelevant: relevant,
		Derived:          labelsFrom(ep, isDerived),
	}
}

// isDerived reports whether a label comes from Kubernetes and not from a user.
func isDerived(key string) bool { return labels.SourceOf(key) == labels.SourceK8s }
func isUsers(key string) bool   { return !isDerived(key) }

func labelsFrom(ep *endpoints.Endpoint, take func(key string) bool) []string {
	return slices.DeleteFunc(labels.Format(ep.Labels), func(label string) bool {
		key, _, _ := cutLabel(label)
		return !take(key)
	})
}

// cutLabel splits "source:key=value".
func cutLabel(label string) (key, value string, valued bool) {
	key, value, valued = strings.Cut(label, "=")
	return key, value, valued
}
