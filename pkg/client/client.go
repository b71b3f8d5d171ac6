// Package client talks with the agent over its unix socket. It adds to the generated requests what callers want:
// time-outs, answers as Go values, and errors that say what was attempted, where, and what to check.
package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	api "github.com/waggle-net/waggle/api/v1/client"
	"github.com/waggle-net/waggle/pkg/agentcall"
)

const (
	// DefaultSocket is where the agent listens unless told otherwise.
	DefaultSocket = "/var/run/waggle/waggle.sock"
	// SocketEnv names the environment variable with the path of the socket.
	SocketEnv = "WAGGLE_SOCK"
	// RequestTimeout bounds a call whose context has no deadline. It is longer than the agent's own bound of 45 s.
	RequestTimeout = 90 * time.Second

	// maxAnswer bounds what is read of one answer; 4095 endpoints with full logs stay well below.
	maxAnswer = 64 << 20
)

// SocketPath picks the socket: the one that was typed (with or without "unix://"), or the environment's, or the default.
func SocketPath(typed string) string {
	if typed == "" {
		typed = os.Getenv(SocketEnv)
	}
	if typed == "" {
		return DefaultSocket
	}
	return strings.TrimPrefix(typed, "unix://")
}

// Client calls one agent. It may be used from any goroutine.
type Client struct {
	socket string
	http   *http.Client
	api    *api.Client
}

// New makes a client for the agent behind a socket; nothing is opened before the first call.
func New(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	c := &Client{socket: socket, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableCompression: true}}}
	c.api = &api.Client{Server: "http://localhost/v1/", Client: c.http}
	return c
}

// Socket is the path of the agent's socket.
func (c *Client) Socket() string { return c.socket }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// request makes one generated call.
type request func(context.Context) (*http.Response, error)

// call sends a request and decodes its answer into a T. Op says what is attempted, for errors.
func call[T any](ctx context.Context, c *Client, op string, send request) (answer T, err error) {
	body, err := c.do(ctx, op, send)
	if err != nil || len(body) == 0 {
		return answer, err
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return answer, fmt.Errorf("%s: read the answer of the agent at %s: %w", op, c.socket, err)
	}
	return answer, nil
}

// do sends a request and returns the body of a successful answer.
func (c *Client) do(ctx context.Context, op string, send request) ([]byte, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, RequestTimeout)
		defer cancel()
	}
	response, err := send(ctx)
	if err != nil {
		return nil, agentcall.Unanswered(op, c.socket, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("%s: read the answer of the agent at %s: %w", op, c.socket, err)
	}
	if response.StatusCode >= 300 {
		return nil, agentcall.Refused(op, response.StatusCode, response.Status, body)
	}
	return body, nil
}
