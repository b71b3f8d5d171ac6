package kubetest

import (
	"net/http"
	"slices"
	"testing"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// Fault answers a request in place of the server, with an HTTP status and a body; status 0 passes the request to the server. An empty body means the
// Status object that an API server sends with that code.
type Fault func(r *http.Request) (status int, body string)

// Request is one request as parsed by the server.
type Request struct {
	Verb        string // as in RBAC: get, list, watch, create, update, patch, delete
	Resource    string // as in kubeapi.Resource.String; empty for paths such as /readyz
	Subresource string
	Namespace   string
	Name        string
	Path        string
	Query       string
	UserAgent   string
	ContentType string // content type of the body
}

type denial struct{ verb, resource string }

// Fault sets a fault that is called first for every later request; nil removes it.
func (s *Server) Fault(fault Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// Deny rejects a verb on a resource, like RBAC.
func (s *Server) Deny(verb string, r kubeapi.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied[denial{verb, r.String()}] = true
}

// RequireToken rejects requests without the token.
func (s *Server) RequireToken(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// Requests lists all requests so far, oldest first.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// CutWatches closes all connections like Stop, but the server continues to listen.
func (s *Server) CutWatches(t testing.TB) {
	t.Helper()
	s.Stop()
	s.Start(t)
}

// Compact forgets all changes so far: watches, including open ones, and continued lists of older versions fail with 410 Gone.
func (s *Server) Compact() {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.version++ // so that the newest version known to clients is also gone
	s.store.compacted = s.store.version
	s.store.changes = nil
	s.store.wake()
}

// EmptyLists makes the next n lists of r from the watch cache return no items, as an API server does directly after its start. Lists without a
// resourceVersion are quorum reads and stay correct.
func (s *Server) EmptyLists(r kubeapi.Resource, n int) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.empty[r.String()] = n
}

// DoubleEvents makes the server send every later event twice.
func (s *Server) DoubleEvents() {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.doubled = true
}

// EnableWatchList enables sendInitialEvents, as in newer API servers; without it such a watch is rejected.
func (s *Server) EnableWatchList() {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.watchList = true
}

// Bookmark sends the current version to all watches of r that want bookmarks.
func (s *Server) Bookmark(r kubeapi.Resource) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.bookmarks[r.String()]++
	s.store.wake()
}
