package apiserver

import (
	"errors"
	"net/http"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/services"
)

// errServiceSource explains why this API cannot change services.
var errServiceSource = errors.New("services are not written over this API: they come from Kubernetes (kubectl apply), " +
	"or without it from the directory of manifests (--manifests-dir)")

// PutServiceID is not supported.
func (a *api) PutServiceID(w http.ResponseWriter, _ *http.Request, _ int64) {
	fail(w, http.StatusNotImplemented, errServiceSource)
}

// DeleteServiceID is not supported.
func (a *api) DeleteServiceID(w http.ResponseWriter, _ *http.Request, _ int64) {
	fail(w, http.StatusNotImplemented, errServiceSource)
}

// GetService returns all frontends of services.
func (a *api) GetService(w http.ResponseWriter, _ *http.Request) {
	respond(w, http.StatusOK, a.services(a.DB.ReadTxn()))
}

func (a *api) services(txn statedb.ReadTxn) []models.Service {
	list := []models.Service{}
	for f := range a.Frontends.All(txn) {
		list = append(list, a.serviceModels(txn, f)...)
	}
	return list
}

// GetServiceID returns one frontend. If clients of this node use other backends, it returns the external scope.
func (a *api) GetServiceID(w http.ResponseWriter, _ *http.Request, id int64) {
	txn := a.DB.ReadTxn()
	for f := range a.Frontends.All(txn) {
		if int64(f.ID) == id {
			respond(w, http.StatusOK, a.serviceModels(txn, f)[0])
			return
		}
	}
	respond(w, http.StatusNotFound, nil)
}

// serviceModels returns one model, or two if clients of this node use other backends.
func (a *api) serviceModels(txn statedb.ReadTxn, f *frontends.Frontend) []models.Service {
	list := []models.Service{a.serviceModel(txn, f, models.FrontendAddressScopeExternal, f.Backends)}
	if f.TwoScopes {
		list = append(list, a.serviceModel(txn, f, models.FrontendAddressScopeInternal, f.Internal))
	}
	return list
}

func (a *api) serviceModel(txn statedb.ReadTxn, f *frontends.Frontend, scope models.FrontendAddressScope, ids []uint32) models.Service {
	namespace, name, _ := strings.Cut(f.Service, "/")
	spec := models.ServiceSpec{
		ID:              int64(f.ID),
		FrontendAddress: models.FrontendAddress{IP: f.Addr.String(), Port: int(f.Port), Protocol: f.Protocol.String(), Scope: scope},
		Flags: models.ServiceSpecFlags{Type: models.ServiceSpecFlagsType(f.Kind), Namespace: namespace, Name: name,
			ExtTrafficPolicy: models.ServiceSpecFlagsExtTrafficPolicyCluster, IntTrafficPolicy: models.ServiceSpecFlagsIntTrafficPolicyCluster},
	}
	if s, _, found := a.Services.Get(txn, services.ByName(f.Service)); found {
		if s.ExternalLocal {
			spec.Flags.ExtTrafficPolicy = models.ServiceSpecFlagsExtTrafficPolicyLocal
		}
		if s.InternalLocal {
			spec.Flags.IntTrafficPolicy = models.ServiceSpecFlagsIntTrafficPolicyLocal
		}
		spec.Flags.HealthCheckNodePort = int(s.HealthCheckNodePort)
	}
	spec.Flags.TrafficPolicy = models.ServiceSpecFlagsTrafficPolicy(spec.Flags.ExtTrafficPolicy)
	for _, id := range ids {
		if b, _, found := a.Backends.Get(txn, backends.ByID(id)); found {
			spec.BackendAddresses = append(spec.BackendAddresses, backendModel(b))
		}
	}
	out := models.Service{Spec: spec}
	if f.Status.Kind == reconciler.StatusKindDone {
		out.Status.Realized = spec
	}
	return out
}

func backendModel(b *backends.Backend) models.BackendAddress {
	out := models.BackendAddress{IP: b.Addr.String(), Port: int(b.Port), Protocol: b.Protocol.String(), NodeName: b.Node, Zone: b.Zone,
		State: models.BackendAddressStateActive}
	if b.State != backends.Active {
		out.State = models.BackendAddressStateTerminating
	}
	return out
}
