package servicehealth

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/services"
)

// responder responds, on any path of the port of a Service, with the number of backends of the Service on this node and whether the datapath follows it.
type responder struct {
	db       *statedb.DB
	ports    statedb.Table[*port]
	services statedb.Table[*services.Service]
	rules    *rules
}

// healthResponse has kube-proxy's format.
type healthResponse struct {
	Service             serviceName `json:"service"`
	LocalEndpoints      int         `json:"localEndpoints"`
	ServiceProxyHealthy bool        `json:"serviceProxyHealthy"`
}

type serviceName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// ServeHTTP implements http.Handler.
func (a responder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	number, err := localPort(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	txn := a.db.ReadTxn()
	p, _, found := a.ports.Get(txn, byNumber(number))
	if !found {
		http.Error(w, "no Service has this port any longer", http.StatusNotFound)
		return
	}
	local, stale := 0, false
	if s, _, found := a.services.Get(txn, services.ByName(p.Service)); found {
		local, stale = s.LocalReady, a.rules.stale(txn, s)
	}
	namespace, name, _ := strings.Cut(p.Service, "/")
	code := http.StatusOK
	if local == 0 || stale {
		code = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(local))
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(healthResponse{serviceName{namespace, name}, local, !stale})
}
