package apiserver

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/server"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/policyexplain"
	"github.com/waggle-net/waggle/pkg/readiness"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/tables/cniconfig"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
	"github.com/waggle-net/waggle/pkg/tables/masquerade"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/tables/unmanagedpods"
)

// api implements the generated interface; files are named after paths of the API.
type api struct {
	cell.In

	Log       *slog.Logger
	DB        *statedb.DB
	Settings  agentconfig.Agent
	Flags     cell.AllSettings
	Manager   endpoint.Manager
	Allocator ipam.Allocator
	MapReader pinnedmaps.Maps

	Ready              readiness.Tables
	Identities         statedb.Table[*identities.Identity]
	EndpointIdentities statedb.Table[*identities.EndpointIdentity]
	Nodes              statedb.Table[*nodes.Node]
	NodeIDs            statedb.Table[*nodeids.NodeID]
	NodeHealth         statedb.Table[*nodehealth.Path]
	NodeClients        *nodeClients
	Unmanaged          statedb.Table[*unmanagedpods.Pod]
	States             statedb.Table[*endpointstates.EndpointState]
	Addresses          statedb.Table[ipamaddresses.Address]
	NodeAddresses      statedb.Table[nodeaddresses.Address]
	Links              statedb.Table[*devices.Device]
	Exclusions         statedb.Table[*masquerade.Exclusion]
	Maps               statedb.Table[*bpfmaps.Map]
	CNIConfig          statedb.Table[cniconfig.Config]
	APIServers         statedb.Table[apiservers.Server]
	Services           statedb.Table[*services.Service]
	Frontends          statedb.Table[*frontends.Frontend]
	Backends           statedb.Table[*backends.Backend]
	Policy             policyexplain.Tables
	Flows              statedb.Table[*flows.Flow]
}

var _ server.ServerInterface = (*api)(nil)

// newHandler returns the handler of all routes.
func newHandler(a api) http.Handler {
	mux := http.NewServeMux()
	server.HandlerWithOptions(&a, server.StdHTTPServerOptions{
		BaseURL:          "/v1",
		BaseRouter:       mux,
		Middlewares:      []server.MiddlewareFunc{newLimits().limit, bounded},
		ErrorHandlerFunc: badParameter,
	})
	mux.Handle("/statedb/", http.StripPrefix("/statedb", newStateDB(a.DB)))
	return recovered(a.Log, routed(mux))
}

// bounded limits the duration of a handler and the size of the body.
func bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), handlerTimeout)
		defer cancel()
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
