package kubeapi

import (
	"context"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
)

// servers is the list of addresses with the active one and the state of each.
type servers struct {
	urls []*url.URL

	mu      sync.Mutex // guards the fields below
	rows    []apiservers.Server
	active  int
	era     context.Context // ends when active changes, together with the watches of that era
	endEra  context.CancelFunc
	whole   context.Context // ends when a response breaks off, see [servers.broke]
	endIt   context.CancelFunc
	changed chan struct{} // closed when a row changes
	doubt   chan struct{} // holds a token when the active server must be probed
}

func newServers(urls []*url.URL) *servers {
	s := &servers{urls: urls, changed: make(chan struct{}), doubt: make(chan struct{}, 1)}
	s.era, s.endEra = context.WithCancel(context.Background())
	s.whole, s.endIt = context.WithCancel(context.Background())
	for i, u := range urls {
		s.rows = append(s.rows, apiservers.Server{Server: u.String(), Active: i == 0, Reachable: apiservers.Unknown})
	}
	return s
}

// current returns the active server, and a context that ends when it is no longer active.
func (s *servers) current() (int, context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active, s.era
}

func (s *servers) snapshot() ([]apiservers.Server, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.rows), s.changed
}

// healthy reports whether the active server answers without error.
func (s *servers) healthy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows[s.active].Well()
}

// responded records an answer. reason says why the answer is unusable; it is empty if it is usable.
func (s *servers) responded(i int, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record(i, apiservers.Yes, reason)
}

// unasked records that the request could not be sent.
func (s *servers) unasked(i int, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record(i, s.rows[i].Reachable, reason)
}

// failed records that a server does not answer or is not ready. If the server is active, the next one becomes active. It reports whether another server
// is active now.
func (s *servers) failed(i int, reach apiservers.Reach, reason string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record(i, reach, reason)
	if i != s.active {
		return true // another goroutine has changed the active server already
	}
	if len(s.rows) == 1 {
		return false
	}
	s.rows[i].Active = false
	s.active = (i + 1) % len(s.rows)
	s.rows[s.active].Active = true
	s.endEra()
	s.era, s.endEra = context.WithCancel(context.Background())
	s.wake()
	return true
}

// record changes a row if a value differs. The caller must hold mu.
func (s *servers) record(i int, reach apiservers.Reach, reason string) {
	row, reason := &s.rows[i], printable.Short(reason, longestReason)
	if row.Reachable == reach && row.Error == reason {
		return
	}
	if row.Reachable != reach || (row.Error == "") != (reason == "") {
		row.Since = time.Now()
	}
	row.Reachable, row.Error = reach, reason
	s.wake()
}

// wake notifies waiters of a change. The caller must hold mu.
func (s *servers) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// broke ends the watches that collect events, after a response on the shared connection has broken off, perhaps because an HTTP/2 ping was not
// answered. The watches' own connections have no pings; behind a proxy, TCP keep-alive probes only reach the proxy.
func (s *servers) broke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endIt()
	s.whole, s.endIt = context.WithCancel(context.Background())
}

// unbroken returns a context that ends with the next call of broke.
func (s *servers) unbroken() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whole
}

// suspect requests a probe of the active server.
func (s *servers) suspect() {
	select {
	case s.doubt <- struct{}{}:
	default:
	}
}

// longestReason limits a reason: longer than any text of this package, shorter than a response may be.
const longestReason = 1000
