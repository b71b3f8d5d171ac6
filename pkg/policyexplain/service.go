package policyexplain

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// maxBackends limits the explained backends of a service.
const maxBackends = 16

// Errors of [View.Explain] for a service whose result depends on missing input or on another node.
var (
	errNoClient  = errors.New("the allowed clients depend on the client's address (loadBalancerSourceRanges): give an address instead of an identity")
	errOtherNode = errors.New("the client's own node chooses among its own backends (internalTrafficPolicy Local): ask there")
)

// throughService explains a connection to an address of a service, by the policies of the service's backends. The result is nil if no service has the
// address.
func (v *View) throughService(c *connection, kernel Kernel) (*models.PolicyExplanation, error) {
	f := v.frontendOf(c)
	if f == nil {
		return nil, nil
	}
	outside := isExternal(c.source, f)
	if err := checkInput(f, c, outside); err != nil {
		return nil, fmt.Errorf("service %s at %s: %w", f.Service, f.Address, err)
	}
	ids, scope := f.Backends, "external"
	if !outside {
		scope = "internal"
	}
	if !outside && f.TwoScopes {
		ids = f.Internal
	}
	e := &models.PolicyExplanation{From: v.model(c.source, c.sourceAddr), To: v.model(c.target, c.targetAddr),
		Service: models.PolicyService{Name: f.Service, ID: int64(f.ID), Frontend: f.Address.String(), Type: string(f.Kind), Scope: scope,
			Backends: len(ids), Message: lag(f)}}
	const perBackend = "evaluated for each backend of the service"
	e.Egress.Message, e.Ingress.Message = perBackend, perBackend
	if why := refusal(f, outside, c.sourceAddr, len(ids)); why != "" {
		e.Verdict, e.Summary = models.PolicyVerdictDenied, fmt.Sprintf("denied by service %s at %s: %s", f.Service, f.Address, why)
		return e, nil
	}
	ids = ids[:min(len(ids), maxBackends)]
	for _, id := range ids {
		b, _, found := v.Backends.Get(v.txn, backends.ByID(id))
		if !found {
			e.Service.Missing++
			continue
		}
		e.Backends = append(e.Backends, *v.backend(c, b, kernel, len(ids) == 1))
	}
	e.Verdict, e.Summary = sumOf(f, e)
	return e, nil
}

// frontendOf returns the frontend to which a connection is addressed.
func (v *View) frontendOf(c *connection) *frontends.Frontend {
	f, _, found := v.Frontends.Get(v.txn, frontends.ByAddress(loadbalancer.Address{Addr: c.targetAddr, Port: c.port,
		Protocol: loadbalancer.Protocol(c.protocol)}))
	if !found || f.Loopback && c.source.Identity != identity.Host {
		return nil // each network namespace has its own loopback addresses
	}
	return f
}

// isExternal reports whether connections of a client reach this node's frontend from the network. For a client in the cluster the client's node
// translates services, except for ports of this node.
func isExternal(client *Party, f *frontends.Frontend) bool {
	switch client.Identity {
	case identity.World, identity.WorldIPv4, identity.WorldIPv6:
		return true
	}
	return !here(client) && (f.Kind == frontends.NodePort || f.Kind == frontends.HostPort)
}

// here reports whether a client is on this node.
func here(client *Party) bool { return client.Endpoint != nil || client.Identity == identity.Host }

// checkInput returns an error if the result depends on missing input or on another node.
func checkInput(f *frontends.Frontend, c *connection, outside bool) error {
	switch {
	case outside && f.Outside && f.Ranges != nil && !c.sourceAddr.IsValid():
		return errNoClient
	case !outside && !here(c.source) && f.LocalOnly && !f.TwoScopes:
		return errOtherNode
	}
	return nil
}

// lag describes why the kernel does not have the current row of a frontend; empty if the kernel has it.
func lag(f *frontends.Frontend) string {
	switch f.Status.Kind {
	case reconciler.StatusKindDone:
		return ""
	case reconciler.StatusKindError:
		return "not in the kernel as desired: " + f.Status.GetError()
	}
	return "not in the kernel yet"
}

// refusal returns the reason why the service forwards no connection of the client, regardless of policies; empty if there is none.
func refusal(f *frontends.Frontend, outside bool, client netip.Addr, backends int) string {
	switch {
	case outside && !f.Outside:
		return "clients outside the cluster are not served there"
	case outside && !f.Admits(client) && f.Deny:
		return fmt.Sprintf("%s lies in its loadBalancerSourceRanges, which deny", client)
	case outside && !f.Admits(client):
		return fmt.Sprintf("%s lies outside of its loadBalancerSourceRanges", client)
	case backends > 0:
		return ""
	case f.LocalOnly && (outside || !f.TwoScopes):
		return "no backend of this node answers for it, and its traffic policy is Local"
	}
	return "it has no backend"
}

// backend explains the connection to one backend. Tracked connections are listed only for a single backend, because the lookup scans the whole flow table.
func (v *View) backend(c *connection, b *backends.Backend, kernel Kernel, only bool) *models.PolicyExplanation {
	target := v.ByAddr(b.Addr)
	on := connection{source: c.source, target: &target, sourceAddr: c.sourceAddr, targetAddr: b.Addr, protocol: c.protocol, port: b.Port}
	if only {
		return v.direct(&on, kernel)
	}
	e := v.evaluate(&on, kernel)
	e.ConntrackError = "give the address of the backend to see them"
	return e
}

// sumOf combines the verdicts of the backends, any of which may receive the connection.
func sumOf(f *frontends.Frontend, e *models.PolicyExplanation) (models.PolicyVerdict, string) {
	service := fmt.Sprintf("service %s at %s", f.Service, f.Address)
	of := fmt.Sprint(len(e.Backends))
	if e.Service.Backends > maxBackends {
		of = fmt.Sprintf("the first %d", maxBackends)
	}
	denied, first := 0, -1
	for i := range e.Backends {
		if e.Backends[i].Verdict == models.PolicyVerdictDenied {
			if denied++; first < 0 {
				first = i
			}
		}
	}
	at := func(i int) string {
		return fmt.Sprintf("%s %s: %s", e.Backends[i].To.Address, e.Backends[i].Port, e.Backends[i].Summary)
	}
	switch {
	case len(e.Backends) == 0:
		return models.PolicyVerdictDenied, "denied by " + service + ": its backends are no longer known"
	case denied > 0:
		return models.PolicyVerdictDenied, fmt.Sprintf("denied towards %d of %s backends of %s: %s", denied, of, service, at(first))
	case len(e.Backends) == 1:
		return models.PolicyVerdictAllowed, fmt.Sprintf("allowed through %s: %s", service, at(0))
	}
	return models.PolicyVerdictAllowed, fmt.Sprintf("allowed through %s, towards all of %s backends", service, of)
}
