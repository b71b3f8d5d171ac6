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

// servers is the list of addresses, which of them is in use, and what is known of each.
type servers struct {
	urls []*url.URL

	mu      sync.Mutex // guards what follows
	rows    []apiservers.Server
	active  int
	era     context.Context // ends when active changes, and the watches of that time with it
	endEra  context.CancelFunc
	whole   context.Context // ends when an answer breaks off, see [servers.broke]
	endIt   context.CancelFunc
	changed chan struct{} // closed when a row changes
	doubt   chan struct{} // holds a token when somebody should ask the active server whether it is ready
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

// current is the server in use, and a context that ends when it no longer is.
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

// healthy says whether the active server answers as it should.
func (s *servers) healthy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows[s.active].Well()
}

// answered records an answer. reason says why it is of no use; it is empty when it is of use.
func (s *servers) answered(i int, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record(i, apiservers.Yes, reason)
}

// unasked records that we could not even ask.
func (s *servers) unasked(i int, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record(i, s.rows[i].Reachable, reason)
}

// failed records that a server does not answer, or does not want to be asked, and takes the next one if that one was in
// use. It says whether another one is in use now.
func (s *servers) failed(i int, reach apiservers.Reach, reason string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record(i, reach, reason)
	if i != s.active {
		return true // somebody else has moved on already
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

// record changes a row if it says something new. The lock is held.
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

// wake tells those who wait for a change. The lock is held.
func (s *servers) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// broke ends the watches that gather: an answer on the connection that others share has broken off, perhaps because a ping of HTTP/2 was not answered.
// Their own connections have no pings; behind a proxy, the keep-alive of TCP asks the proxy alone.
func (s *servers) broke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endIt()
	s.whole, s.endIt = context.WithCancel(context.Background())
}

// unbroken ends with the next call of broke.
func (s *servers) unbroken() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whole
}

// suspect asks for a look at the active server.
func (s *servers) suspect() {
	select {
	case s.doubt <- struct{}{}:
	default:
	}
}

// longestReason is more than any sentence of ours, and less than what a server may send.
const longestReason = 1000
