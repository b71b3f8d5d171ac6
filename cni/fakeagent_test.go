package cni

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/waggle-net/waggle/api/v1/models"
)

// fakeAgent implements the agent's API and records the state that the plugin requested.
type fakeAgent struct {
	stateDir string
	server   *httptest.Server

	mu        sync.Mutex
	ipv4      bool
	ipv6      bool
	state     models.AgentState
	health    models.EndpointHealthStatus
	next      int
	mtu       int               // of links
	addresses map[string]string // address -> owner
	endpoints map[string]models.EndpointChangeRequest
	// fail returns the status and message of a failing request, or 0 for a request that succeeds.
	fail func(method, path string) (int, string)
	// before runs before a request is answered. The lock is not held.
	before func(method, path string)
	// attach configures the host end of a new endpoint as the datapath does.
	attach func(hostEnd string) error
}

func newFakeAgent(t testing.TB, stateDir string) *fakeAgent {
	t.Helper()
	a := &fakeAgent{stateDir: stateDir, ipv4: true, ipv6: true, mtu: 1450, addresses: map[string]string{},
		endpoints: map[string]models.EndpointChangeRequest{}, health: models.EndpointHealthStatusOK,
		state: models.AgentState{State: models.AgentStateStateReady}}
	a.start(t)
	t.Cleanup(a.stop)
	return a
}

func (a *fakeAgent) socket() string { return filepath.Join(a.stateDir, "waggle.sock") }

func (a *fakeAgent) start(t testing.TB) {
	t.Helper()
	listener, err := net.Listen("unix", a.socket())
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/config", a.getConfig)
	mux.HandleFunc("POST /v1/ipam", a.postIPAM)
	mux.HandleFunc("DELETE /v1/ipam/{ip}", a.deleteIP)
	mux.HandleFunc("PUT /v1/endpoint/{id}", a.putEndpoint)
	mux.HandleFunc("GET /v1/endpoint", a.getEndpoints)
	mux.HandleFunc("DELETE /v1/endpoint/{id}", a.deleteEndpoint)
	mux.HandleFunc("GET /v1/endpoint/{id}/healthz", a.getEndpointHealth)
	a.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.before != nil {
			a.before(r.Method, r.URL.Path)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.fail != nil {
			if status, text := a.fail(r.Method, r.URL.Path); status != 0 {
				respond(w, status, text)
				return
			}
		}
		mux.ServeHTTP(w, r)
	}))
	_ = a.server.Listener.Close()
	a.server.Listener = listener
	a.server.Start()
}

func (a *fakeAgent) stop() {
	if a.server != nil {
		a.server.Close()
		a.server = nil
	}
}

// set changes the agent's behaviour under its lock.
func (a *fakeAgent) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// left returns the addresses and endpoints that the agent holds, sorted.
func (a *fakeAgent) left() (addresses, endpoints []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.addresses)), slices.Sorted(maps.Keys(a.endpoints))
}

func respond(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func (a *fakeAgent) addressing() (n models.NodeAddressing) {
	if a.ipv4 {
		n.Ipv4 = models.NodeAddressingElement{Enabled: true, IP: "10.9.0.1", AllocRange: "10.9.0.0/24"}
	}
	if a.ipv6 {
		n.Ipv6 = models.NodeAddressingElement{Enabled: true, IP: "fd09::1", AllocRange: "fd09::/112"}
	}
	return n
}

func (a *fakeAgent) getConfig(w http.ResponseWriter, _ *http.Request) {
	respond(w, 200, models.DaemonConfiguration{Status: models.DaemonConfigurationStatus{
		Addressing: a.addressing(), DeviceMTU: a.mtu, RouteMTU: 1400, Agent: a.state}})
}

func (a *fakeAgent) postIPAM(w http.ResponseWriter, r *http.Request) {
	a.next++
	body := models.IPAMResponse{HostAddressing: a.addressing()}
	owner := r.URL.Query().Get("owner")
	if r.Header.Get("expiration") != "true" {
		respond(w, 400, "the test wants expiration")
		return
	}
	if a.ipv4 {
		body.Address.Ipv4, body.Address.Ipv4PoolName = fmt.Sprintf("10.9.0.%d", 10+a.next), "default"
		body.Ipv4 = models.IPAMAddressResponse{IP: body.Address.Ipv4, ExpirationUUID: "uuid4"}
		a.addresses[body.Address.Ipv4] = owner
	}
	if a.ipv6 {
		body.Address.Ipv6, body.Address.Ipv6PoolName = fmt.Sprintf("fd09::%x", 0x10+a.next), "default"
		body.Ipv6 = models.IPAMAddressResponse{IP: body.Address.Ipv6, ExpirationUUID: "uuid6"}
		a.addresses[body.Address.Ipv6] = owner
	}
	respond(w, 201, body)
}

func (a *fakeAgent) deleteIP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("pool") == "" {
		respond(w, 500, "pool is missing")
		return
	}
	if _, err := netip.ParseAddr(r.PathValue("ip")); err != nil {
		respond(w, 400, err.Error())
		return
	}
	delete(a.addresses, r.PathValue("ip"))
}

func (a *fakeAgent) putEndpoint(w http.ResponseWriter, r *http.Request) {
	var req models.EndpointChangeRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		respond(w, 400, err.Error())
		return
	}
	id := req.ContainerID + ":" + req.ContainerInterfaceName
	if _, ok := a.endpoints[id]; ok {
		respond(w, 400, "endpoint exists already")
		return
	}
	if !req.SyncBuildEndpoint || req.NetnsCookie == "" || req.Properties["netns-inode"] == nil {
		respond(w, 400, "the test wants sync-build-endpoint, netns-cookie and netns-inode")
		return
	}
	if err := a.attach(req.InterfaceName); err != nil {
		respond(w, 500, err.Error())
		return
	}
	a.endpoints[id] = req
	respond(w, 201, models.Endpoint{ID: int64(len(a.endpoints))})
}

func (a *fakeAgent) getEndpoints(w http.ResponseWriter, _ *http.Request) {
	all := []models.Endpoint{{ID: 1}} // the host's endpoint, which no ADD created
	for id := range a.endpoints {
		all = append(all, models.Endpoint{Status: models.EndpointStatus{
			ExternalIdentifiers: models.EndpointIdentifiers{CNIAttachmentID: id}}})
	}
	respond(w, 200, all)
}

func (a *fakeAgent) deleteEndpoint(w http.ResponseWriter, r *http.Request) {
	id, ok := strings.CutPrefix(r.PathValue("id"), "cni-attachment-id:")
	req, found := a.endpoints[id]
	if !ok || !found {
		w.WriteHeader(404)
		return
	}
	delete(a.endpoints, id)
	delete(a.addresses, req.Addressing.Ipv4)
	delete(a.addresses, req.Addressing.Ipv6)
}

func (a *fakeAgent) getEndpointHealth(w http.ResponseWriter, r *http.Request) {
	if _, ok := a.endpoints[strings.TrimPrefix(r.PathValue("id"), "cni-attachment-id:")]; !ok {
		w.WriteHeader(404)
		return
	}
	respond(w, 200, models.EndpointHealth{OverallHealth: a.health})
}
