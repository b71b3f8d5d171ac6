// Package client calls the agent over its unix socket. It adds timeouts to the generated requests, decodes responses into
// Go values, and returns errors that name the attempted operation, the socket and a remedy.
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
	// DefaultSocket is the default path of the agent's socket.
	DefaultSocket = "/var/run/waggle/waggle.sock"
	// SocketEnv names the environment variable with the path of the socket.
	SocketEnv = "WAGGLE_SOCK"
	// RequestTimeout limits a call whose context has no deadline. It is longer than the agent's own limit of 45 s.
	RequestTimeout = 90 * time.Second

	// maxAnswer limits the size of one response in bytes; 4095 endpoints with full logs stay well below it.
	maxAnswer = 64 << 20
)

// SocketPath returns the path of the socket: typed if it is not empty, otherwise the value of [SocketEnv], otherwise [DefaultSocket].
// It removes the prefix "unix://".
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

// New returns a client for the agent behind a socket. It opens no connection before the first call.
func New(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	c := &Client{socket: socket, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableCompression: true}}}
	c.api = &api.Client{Server: "http://localhost/v1/", Client: c.http}
	return c
}

// Socket returns the path of the agent's socket.
func (c *Client) Socket() string { return c.socket }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// request sends one generated request.
type request func(context.Context) (*http.Response, error)

// call sends a request and decodes the response into a T. op names the attempted operation in errors.
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

// do sends a request and returns the body of a successful response.
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
		return nil, agentcall.NewError(op, response.StatusCode, response.Status, body)
	}
	return body, nil
}
