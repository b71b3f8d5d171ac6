package kubetest

import (
	"net/http"
	"slices"
	"testing"

	"github.com/waggle-net/waggle/pkg/kubeapi"
)

// Fault answers a request instead of the server, with an HTTP status and a body; status 0 leaves it to the server. An
// empty body stands for the Status object that an API server sends with that code.
type Fault func(r *http.Request) (status int, body string)

// Request is one request as the server understood it.
type Request struct {
	Verb        string // as in RBAC: get, list, watch, create, update, patch, delete
	Resource    string // as in kubeapi.Resource.String; empty for paths such as /readyz
	Subresource string
	Namespace   string
	Name        string
	Path        string
	Query       string
	UserAgent   string
	ContentType string // of the body
}

type denial struct{ verb, resource string }

// Fault has fault asked first for every request from now on; nil ends that.
func (s *Server) Fault(fault Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// Deny refuses a verb on a resource as RBAC does.
func (s *Server) Deny(verb string, r kubeapi.Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied[denial{verb, r.String()}] = true
}

// RequireToken refuses everybody who does not show token.
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

// CutWatches ends all connections, as Stop does, and goes on listening.
func (s *Server) CutWatches(t testing.TB) {
	t.Helper()
	s.Stop()
	s.Start(t)
}

// Compact forgets all changes so far: watches, open ones included, and continued lists of older versions end with 410
// Gone.
func (s *Server) Compact() {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.version++ // so that the newest version that a client can know is gone too
	s.store.compacted = s.store.version
	s.store.changes = nil
	s.store.wake()
}

// EmptyLists has the next n lists of r that the watch cache answers come out empty, as those of an API server that has
// just started do. Lists without a resourceVersion are quorum reads and stay right.
func (s *Server) EmptyLists(r kubeapi.Resource, n int) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.empty[r.String()] = n
}

// DoubleEvents sends every event twice from now on.
func (s *Server) DoubleEvents() {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.doubled = true
}

// EnableWatchList has sendInitialEvents understood, as newer API servers do; without it such a watch is refused.
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
