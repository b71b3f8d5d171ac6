package kubetest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// Server is one API server. Its methods are safe for concurrent use.
type Server struct {
	store   *store
	address string      // host:port, kept over Stop and Start
	tls     *tls.Config // nil means plain HTTP
	ca      []byte      // PEM; empty without TLS
	network *network    // nil means sockets

	mu       sync.Mutex // guards the fields below
	http     *http.Server
	done     chan struct{} // closed when http has stopped
	token    string        // token that clients must send; empty allows all clients
	fault    Fault
	denied   map[denial]bool
	requests []Request
}

// Option configures New.
type Option func(t testing.TB, s *Server)

// New starts a server without objects; it stops with the test.
func New(t testing.TB, options ...Option) *Server {
	t.Helper()
	return start(t, newStore(), options)
}

// Replica starts another server with the same objects and another address. It has its own faults and requests.
func (s *Server) Replica(t testing.TB, options ...Option) *Server {
	t.Helper()
	return start(t, s.store, append([]Option{func(_ testing.TB, replica *Server) { replica.network = s.network }}, options...))
}

func start(t testing.TB, shared *store, options []Option) *Server {
	t.Helper()
	s := newServer(shared)
	for _, option := range options {
		option(t, s)
	}
	s.Start(t)
	t.Cleanup(s.Stop)
	return s
}

func newServer(shared *store) *Server {
	return &Server{store: shared, address: "127.0.0.1:0", denied: map[denial]bool{}}
}

// Open is [New] for programs other than tests: the caller must stop the server.
func Open() (*Server, error) {
	s := newServer(newStore())
	return s, s.Reopen()
}

// OpenReplica is [Server.Replica] for programs other than tests: the caller must stop the replica.
func (s *Server) OpenReplica() (*Server, error) {
	replica := newServer(s.store)
	replica.network = s.network
	return replica, replica.Reopen()
}

// Start listens again on the address that the server had before Stop.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	if err := s.startHTTP(func(err error) { t.Errorf("the fake API server ended: %v", err) }); err != nil {
		t.Fatal(err)
	}
}

// Reopen is [Server.Start] for programs other than tests.
func (s *Server) Reopen() error { return s.startHTTP(func(error) {}) } // clients report failures

// startHTTP calls failed if the server ends without Stop.
func (s *Server) startHTTP(failed func(error)) error {
	listener, err := s.listen()
	if err != nil {
		return fmt.Errorf("start the fake API server: %w", err)
	}
	s.address = listener.Addr().String()
	server := &http.Server{Handler: s, TLSConfig: s.tls, ReadHeaderTimeout: time.Minute, ErrorLog: quiet}
	done := make(chan struct{})
	s.mu.Lock()
	s.http, s.done = server, done
	s.mu.Unlock()
	go func() {
		defer close(done)
		serve := func() error { return server.Serve(listener) }
		if s.tls != nil {
			serve = func() error { return server.ServeTLS(listener, "", "") }
		}
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			failed(err)
		}
	}()
	return nil
}

func (s *Server) listen() (net.Listener, error) {
	if s.network != nil {
		return s.network.listen(s.address), nil
	}
	for deadline := time.Now().Add(listenTimeout); ; time.Sleep(10 * time.Millisecond) {
		listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", s.address)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(deadline) {
			return listener, err
		}
	}
}

// listenTimeout limits the wait for the port of a server that starts again. A client that connects to the port meanwhile may get it as its own port, and is
// then connected to itself, until it closes the connection.
const listenTimeout = time.Minute

// Stop closes the port and every connection, including watches. The objects stay.
func (s *Server) Stop() {
	s.mu.Lock()
	server, done := s.http, s.done
	s.http = nil
	s.mu.Unlock()
	if server == nil {
		return
	}
	_ = server.Close() // the error only repeats the error of the listener
	<-done
}

// Address returns the server's host:port.
func (s *Server) Address() string { return s.address }

// URL returns the server's address with its scheme.
func (s *Server) URL() string {
	if s.tls != nil {
		return "https://" + s.address
	}
	return "http://" + s.address
}

// Config returns the client configuration for the server.
func (s *Server) Config() *rest.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	config := &rest.Config{Host: s.URL(), BearerToken: s.token, TLSClientConfig: rest.TLSClientConfig{CAData: s.ca},
		QPS: -1, UserAgent: "kubetest"}
	if s.network != nil {
		config.Dial = s.network.dial
	}
	return config
}

// Client returns a client of the server without a rate limit.
func (s *Server) Client(t testing.TB) *kubeapi.Client {
	t.Helper()
	client, err := kubeapi.New(s.Config(), kubeapi.DefaultConnection)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
