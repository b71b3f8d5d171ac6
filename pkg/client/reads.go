package client

import (
	"context"
	"net/http"

	"github.com/waggle-net/waggle/api/v1/models"
)

// Endpoints returns all endpoints.
func (c *Client) Endpoints(ctx context.Context) ([]models.Endpoint, error) {
	return call[[]models.Endpoint](ctx, c, "list the endpoints",
		func(ctx context.Context) (*http.Response, error) { return c.api.GetEndpoint(ctx) })
}

// Endpoint returns one endpoint; id is "[prefix:]id".
func (c *Client) Endpoint(ctx context.Context, id string) (*models.Endpoint, error) {
	return call[*models.Endpoint](ctx, c, "get endpoint "+id,
		func(ctx context.Context) (*http.Response, error) { return c.api.GetEndpointID(ctx, id) })
}

// EndpointHealth returns the health of one endpoint.
func (c *Client) EndpointHealth(ctx context.Context, id string) (*models.EndpointHealth, error) {
	return call[*models.EndpointHealth](ctx, c, "get the health of endpoint "+id,
		func(ctx context.Context) (*http.Response, error) { return c.api.GetEndpointIDHealthz(ctx, id) })
}

// EndpointLog returns what happened to one endpoint, newest first.
func (c *Client) EndpointLog(ctx context.Context, id string) ([]models.EndpointStatusChange, error) {
	return call[[]models.EndpointStatusChange](ctx, c, "get the log of endpoint "+id,
		func(ctx context.Context) (*http.Response, error) { return c.api.GetEndpointIDLog(ctx, id) })
}

// EndpointLabels returns the labels of one endpoint.
func (c *Client) EndpointLabels(ctx context.Context, id string) (*models.LabelConfiguration, error) {
	return call[*models.LabelConfiguration](ctx, c, "get the labels of endpoint "+id,
		func(ctx context.Context) (*http.Response, error) { return c.api.GetEndpointIDLabels(ctx, id) })
}

// Map returns one map with its entries.
func (c *Client) Map(ctx context.Context, name string) (*models.BPFMap, error) {
	return call[*models.BPFMap](ctx, c, "get map "+name,
		func(ctx context.Context) (*http.Response, error) { return c.api.GetMapName(ctx, name) })
}

// Nodes returns all nodes of the cluster.
func (c *Client) Nodes(ctx context.Context) (*models.ClusterNodeStatus, error) {
	return call[*models.ClusterNodeStatus](ctx, c, "list the nodes",
		func(ctx context.Context) (*http.Response, error) {
			return c.api.GetClusterNodes(ctx, &models.GetClusterNodesParams{})
		})
}

// Identity returns one identity; id is its number.
func (c *Client) Identity(ctx context.Context, id string) (*models.Identity, error) {
	return call[*models.Identity](ctx, c, "get identity "+id,
		func(ctx context.Context) (*http.Response, error) { return c.api.GetIdentityID(ctx, id) })
}
