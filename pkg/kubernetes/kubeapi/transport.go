package kubeapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// Connection holds the timeouts of connections.
type Connection struct {
	Timeout   time.Duration // for establishing a connection
	KeepAlive time.Duration // idle time until the peer is probed; the reply must arrive within half of this
}

// DefaultConnection detects a dead connection within 15 s.
var DefaultConnection = Connection{Timeout: 5 * time.Second, KeepAlive: 10 * time.Second}

const (
	handshakeTimeout = 10 * time.Second
	headerTimeout    = 60 * time.Second // longer than any request except a watch, and a watch sends headers immediately
	idleTimeout      = 90 * time.Second
	idlePerServer    = 25
)

// reloading is an HTTP transport that reads the CA file again after an untrusted certificate: clusters replace their CA while agents run. That request
// fails; the next one uses the new CA.
type reloading struct {
	config     *rest.Config
	connection Connection

	mu       sync.Mutex // guards the fields below
	current  *http.Transport
	gathered *http.Transport // for [Gathering]
	ca       []byte          // content of the file in both transports
}

func newReloading(config *rest.Config, connection Connection) (*reloading, error) {
	r := &reloading{config: config, connection: connection}
	return r, r.load()
}

// load creates the transports.
func (r *reloading) load() error {
	ca, err := r.readCA()
	if err != nil {
		return err
	}
	secured, err := rest.TLSConfigFor(r.config)
	if err != nil {
		return fmt.Errorf("prepare TLS: %w", err)
	}
	dialer := &net.Dialer{Timeout: r.connection.Timeout, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: r.connection.KeepAlive, Interval: r.connection.KeepAlive / 4, Count: 2}}
	dial := dialer.DialContext
	if r.config.Dial != nil {
		dial = bounded(r.config.Dial, r.connection.Timeout)
	}
	r.ca, r.current = ca, &http.Transport{
		Proxy: r.config.Proxy, DialContext: dial, TLSClientConfig: secured,
		TLSHandshakeTimeout: handshakeTimeout, ResponseHeaderTimeout: headerTimeout, IdleConnTimeout: idleTimeout,
		MaxIdleConnsPerHost: idlePerServer, ForceAttemptHTTP2: true,
		HTTP2: &http.HTTP2Config{SendPingTimeout: r.connection.KeepAlive, PingTimeout: r.connection.KeepAlive / 2},
	}
	r.gathered = gatheredTransport(r.config.Proxy, dial, secured)
	return nil
}

// gatheredTransport creates a connection for each request, which must have a [Gathering] context. TCP keep-alive detects a dead connection.
func gatheredTransport(proxy func(*http.Request) (*url.URL, error), dial dial, secured *tls.Config) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy: proxy, TLSClientConfig: secured.Clone() /* the other transport adds HTTP/2 to its own */, TLSHandshakeTimeout: handshakeTimeout, ResponseHeaderTimeout: headerTimeout,
		Protocols: &protocols, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return gatheringOf(ctx).over(conn), nil
		},
	}
}

// dial opens a connection like [net.Dialer.DialContext].
type dial func(ctx context.Context, network, address string) (net.Conn, error)

// bounded returns d with a timeout.
func bounded(d dial, timeout time.Duration) dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return d(ctx, network, address)
	}
}

func (r *reloading) readCA() ([]byte, error) {
	if r.config.CAFile == "" {
		return nil, nil
	}
	ca, err := os.ReadFile(r.config.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read the CA of the API server: %w", err)
	}
	return ca, nil
}

// RoundTrip implements http.RoundTripper.
func (r *reloading) RoundTrip(request *http.Request) (*http.Response, error) {
	r.mu.Lock()
	transport := r.current
	if gatheringOf(request.Context()) != nil {
		transport = r.gathered
	}
	r.mu.Unlock()
	response, err := transport.RoundTrip(request)
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &untrusted) {
		r.reload()
	}
	return response, err
}

// reload switches to the CA in the file if it differs. It ignores an unusable CA.
func (r *reloading) reload() {
	r.mu.Lock()
	defer r.mu.Unlock()
	ca, err := r.readCA()
	if err != nil || bytes.Equal(ca, r.ca) {
		return
	}
	old := r.current
	if r.load() == nil {
		old.CloseIdleConnections()
	}
}
