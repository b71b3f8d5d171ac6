package client

import (
	"context"
	"net/http"

	"github.com/waggle-net/waggle/api/v1beta"
)

// NodeHealth returns the nodes and whether the agent reaches them. With probe, the agent probes all of them first, for 20 s at most. The client must use
// the socket of the health API.
func (c *Client) NodeHealth(ctx context.Context, probe bool) (*v1beta.HealthStatusResponse, error) {
	method, path, op := http.MethodGet, "/status", "get the health of the nodes"
	if probe {
		method, path, op = http.MethodPut, "/status/probe", "probe the nodes"
	}
	return call[*v1beta.HealthStatusResponse](ctx, c, op, func(ctx context.Context) (*http.Response, error) {
		request, err := http.NewRequestWithContext(ctx, method, "http://localhost"+v1beta.BasePath+path, nil)
		if err != nil {
			return nil, err
		}
		return c.http.Do(request)
	})
}
