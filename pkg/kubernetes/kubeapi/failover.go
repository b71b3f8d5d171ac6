package kubeapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/waggle-net/waggle/pkg/tables/apiservers"
)

// failover sends each request to the active server, and to the next one if no connection is possible:
//
//   - No connection, or a broken one: the next server becomes active, and the watches of the previous one are closed,
//     so that no reader keeps following its state. A request that was certainly not sent, or that only reads, is sent
//     to the next server immediately; for other requests the caller gets an error and decides.
//   - 502, 503 and 504 that no API server has written (its responses are JSON or protobuf): a load balancer without a
//     server behind it; handled like a broken connection.
//   - Any other 5xx, a request timeout, or a broken watch: [Client.Run] probes the readiness of the server. If it is
//     not ready, the next one becomes active.
//   - A working server stays active; no server is preferred.
type failover struct {
	*servers
	transport *reloading
}

// RoundTrip implements http.RoundTripper.
func (f failover) RoundTrip(request *http.Request) (*http.Response, error) {
	var failures unreachable
	for attempt := range f.urls {
		i, era := f.current()
		response, err := f.try(request, i, era, attempt)
		if err == nil {
			if response, err = f.evaluate(request, i, response); response != nil {
				return response, nil
			}
		}
		if ctxErr := request.Context().Err(); ctxErr != nil {
			if errors.Is(ctxErr, context.DeadlineExceeded) {
				f.suspect()
			}
			return nil, err
		}
		failures = append(failures, failure{f.urls[i].String(), err})
		moved := f.failed(i, apiservers.No, explain(err))
		if !moved || !repeatable(request, err) {
			break
		}
	}
	return nil, failures
}

// try sends a request to one server. A watch is closed at the end of the era.
func (f failover) try(request *http.Request, i int, era context.Context, attempt int) (*http.Response, error) {
	ctx, cancel := context.WithCancel(request.Context())
	release, broke := cancel, func() { f.broke(); f.suspect() }
	if watches(request) {
		stop := context.AfterFunc(era, cancel)
		release = func() { stop(); cancel() }
	}
	if gatheringOf(ctx) != nil {
		before, stop := release, context.AfterFunc(f.unbroken(), cancel)
		release, broke = func() { stop(); before() }, f.suspect
	}
	sent := request.Clone(ctx)
	sent.URL.Scheme, sent.URL.Host, sent.Host = f.urls[i].Scheme, f.urls[i].Host, ""
	if attempt > 0 && request.GetBody != nil {
		body, err := request.GetBody()
		if err != nil {
			release()
			return nil, err
		}
		sent.Body = body
	}
	response, err := f.transport.RoundTrip(sent)
	if err != nil {
		release()
		return nil, err
	}
	gatheringOf(ctx).begin()
	response.Body = &body{ReadCloser: response.Body, caller: request.Context(), era: era, release: release, broke: broke}
	return response, nil
}

// evaluate records the result of a request that was answered. If it returns no response, the server counts as unreachable.
func (f failover) evaluate(request *http.Request, i int, response *http.Response) (*http.Response, error) {
	code := response.StatusCode
	ours := strings.HasPrefix(response.Header.Get("Content-Type"), "application/")
	switch {
	case !ours && (code == http.StatusBadGateway || code == http.StatusServiceUnavailable || code == http.StatusGatewayTimeout):
		_ = response.Body.Close()
		return nil, fmt.Errorf("%w: %s", errNoServer, response.Status)
	case !ours && code == http.StatusBadRequest && f.urls[i].Scheme == "http":
		_ = response.Body.Close()
		return nil, errTLSRequired
	case code == http.StatusUnauthorized:
		f.responded(i, "401 Unauthorized: "+credentialsRemedy)
	case code >= http.StatusInternalServerError:
		f.suspect()
	case request.URL.Path != readyPath:
		f.responded(i, "")
	}
	return response, nil
}

var (
	errNoServer    = errors.New("the server that answers is not an API server")
	errTLSRequired = errors.New("the server does not speak http: prefix the address with https:// (the default scheme is http)")
)

// repeatable reports whether a request may be repeated: it was never sent, or it only reads.
func repeatable(request *http.Request, err error) bool {
	if request.Body != nil && request.Body != http.NoBody && request.GetBody == nil {
		return false
	}
	var dial *net.OpError
	var certificate *tls.CertificateVerificationError
	return request.Method == http.MethodGet || errors.As(err, &dial) && dial.Op == "dial" || errors.As(err, &certificate) ||
		errors.Is(err, errTLSRequired)
}

func watches(request *http.Request) bool {
	return strings.Contains("&"+request.URL.RawQuery+"&", "&watch=")
}

// body is the body of a response. If it breaks, or the era ends, the reader sees a closed connection.
type body struct {
	io.ReadCloser
	caller  context.Context // of the request, to find out whether the caller ended it
	era     context.Context
	release func()
	broke   func()
	closed  atomic.Bool // by the caller, after which a pending read fails as well
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil || errors.Is(err, io.EOF) || b.caller.Err() != nil {
		return n, err
	}
	if b.era.Err() == nil && !b.closed.Load() {
		b.broke()
	}
	return n, io.ErrUnexpectedEOF // unwrapped, because client-go compares it
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.closed.Store(true)
	b.release()
	return b.ReadCloser.Close()
}
