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

// PatchConfig changes options of the agent.
func (c *Client) PatchConfig(ctx context.Context, spec models.DaemonConfigurationSpec) error {
	_, err := c.do(ctx, "change the configuration", func(ctx context.Context) (*http.Response, error) {
		return c.api.PatchConfig(ctx, spec)
	})
	return err
}

// Status returns the health of the agent; brief asks for the overall status only.
func (c *Client) Status(ctx context.Context, brief bool) (*models.StatusResponse, error) {
	return call[*models.StatusResponse](ctx, c, "get the status", func(ctx context.Context) (*http.Response, error) {
		return c.api.GetHealthz(ctx, &models.GetHealthzParams{Brief: &brief})
	})
}

// Allocation is a request for the next free addresses.
type Allocation struct {
	Family string // "ipv4", "ipv6", or empty for every enabled one
	Owner  string // "namespace/pod"
	Pool   string // empty means the default pool
	Expire bool   // give them back after ten minutes without an endpoint; the answer holds a UUID for the endpoint
}

// AllocateIP takes the next free addresses.
func (c *Client) AllocateIP(ctx context.Context, a Allocation) (*models.IPAMResponse, error) {
	params := models.PostIPAMParams{Family: given(models.PostIPAMParamsFamily(a.Family)), Owner: given(a.Owner), Pool: given(a.Pool),
		Expiration: given(a.Expire)}
	return call[*models.IPAMResponse](ctx, c, "allocate an address", func(ctx context.Context) (*http.Response, error) {
		return c.api.PostIPAM(ctx, &params)
	})
}

// AllocateSpecificIP takes one address.
func (c *Client) AllocateSpecificIP(ctx context.Context, ip, owner, pool string) error {
	_, err := c.do(ctx, "allocate address "+ip, func(ctx context.Context) (*http.Response, error) {
		return c.api.PostIPAMIP(ctx, ip, &models.PostIPAMIPParams{Owner: given(owner), Pool: given(pool)})
	})
	return err
}

// ReleaseIP gives one address back. It is no error when nobody had it.
func (c *Client) ReleaseIP(ctx context.Context, ip, pool string) error {
	_, err := c.do(ctx, "release address "+ip, func(ctx context.Context) (*http.Response, error) {
		return c.api.DeleteIPAMIP(ctx, ip, &models.DeleteIPAMIPParams{Pool: given(pool)})
	})
	return err
}

// CreateEndpoint attaches a container. With SyncBuildEndpoint it returns when packets can pass.
func (c *Client) CreateEndpoint(ctx context.Context, r models.EndpointChangeRequest) (*models.Endpoint, error) {
	return call[*models.Endpoint](ctx, c, "create the endpoint", func(ctx context.Context) (*http.Response, error) {
		return c.api.PutEndpointID(ctx, "cilium-local:0", r)
	})
}

// DeleteEndpoint removes one endpoint; id is "[prefix:]id".
func (c *Client) DeleteEndpoint(ctx context.Context, id string) error {
	_, err := c.do(ctx, "delete endpoint "+id, func(ctx context.Context) (*http.Response, error) {
		return c.api.DeleteEndpointID(ctx, id)
	})
	return err
}

// DeleteContainer removes all endpoints of a container.
func (c *Client) DeleteContainer(ctx context.Context, containerID string) error {
	_, err := c.do(ctx, "delete the endpoints of container "+containerID, func(ctx context.Context) (*http.Response, error) {
		return c.api.DeleteEndpoint(ctx, models.EndpointBatchDeleteRequest{ContainerID: containerID})
	})
	return err
}

// given leaves a parameter out of the request when it has its zero value.
func given[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
