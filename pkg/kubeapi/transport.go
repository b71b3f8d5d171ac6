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

// Connection says how patient connections are.
type Connection struct {
	Timeout   time.Duration // for a connection to come about
	KeepAlive time.Duration // of silence until the other side is asked for a sign of life, which it has half of this to give
}

// DefaultConnection finds a dead connection in 15 s.
var DefaultConnection = Connection{Timeout: 5 * time.Second, KeepAlive: 10 * time.Second}

const (
	handshakeTimeout = 10 * time.Second
	headerTimeout    = 60 * time.Second // more than any request but a watch may take, and a watch answers at once
	idleTimeout      = 90 * time.Second
	idlePerServer    = 25
)

// reloading is an HTTP transport that looks at the file of the CA again when a certificate turns out not to be trusted:
// clusters replace their CA while agents run. The request fails; the next one finds the new CA.
type reloading struct {
	config     *rest.Config
	connection Connection

	mu       sync.Mutex // guards what follows
	current  *http.Transport
	gathered *http.Transport // for [Gathering]
	ca       []byte          // content of the file, as both know it
}

func newReloading(config *rest.Config, connection Connection) (*reloading, error) {
	r := &reloading{config: config, connection: connection}
	return r, r.load()
}

// load makes the transport anew.
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

// gatheredTransport makes a connection for each request, which must be of [Gathering]. A dead connection is found by the keep-alive of TCP.
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

// dial makes a connection, as [net.Dialer.DialContext] does.
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

// reload uses the CA that the file holds now, if that is another. One that cannot be used is left alone.
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
