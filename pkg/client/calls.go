package client

import (
	"context"
	"net/http"

	"github.com/waggle-net/waggle/api/v1/models"
)

// Config returns the agent's configuration, also while it is starting; see [Client.WaitConfig].
func (c *Client) Config(ctx context.Context) (*models.DaemonConfiguration, error) {
	return call[*models.DaemonConfiguration](ctx, c, "get the configuration", func(ctx context.Context) (*http.Response, error) {
		return c.api.GetConfig(ctx)
	})
}

// Status returns the health of the agent; brief asks for the overall status only.
func (c *Client) Status(ctx context.Context, brief bool) (*models.StatusResponse, error) {
	return call[*models.StatusResponse](ctx, c, "get the status", func(ctx context.Context) (*http.Response, error) {
		return c.api.GetHealthz(ctx, &models.GetHealthzParams{Brief: &brief})
	})
}

// DeleteEndpoint removes one endpoint; id is "[prefix:]id".
func (c *Client) DeleteEndpoint(ctx context.Context, id string) error {
	_, err := c.do(ctx, "delete endpoint "+id, func(ctx context.Context) (*http.Response, error) {
		return c.api.DeleteEndpointID(ctx, id)
	})
	return err
}
