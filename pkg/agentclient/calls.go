package agentclient

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"time"

	"github.com/waggle-net/waggle/api/v1/models"
)

// RequestTimeout bounds a call whose context has no deadline. It is longer than the agent's own bound of 45 s.
const RequestTimeout = 90 * time.Second

// Client calls one agent. It may be used from any goroutine.
type Client struct {
	socket string
	dial   dial
}

// minimal asks the agent to omit what the plugin does not read (RFC 7240).
const minimal = "Prefer: return=minimal\r\n"

// New returns a client for the agent behind a socket. It opens no connection before the first call.
func New(socket string) *Client { return &Client{socket, dialUnix} }

// Socket returns the path of the agent's socket.
func (c *Client) Socket() string { return c.socket }

// PodConfig holds the part of the agent's configuration that the plugin uses. Agents of previous releases report all of these fields too.
type PodConfig struct {
	Addressing models.NodeAddressing `json:"addressing"`
	DeviceMTU  int                   `json:"deviceMTU"`
	RouteMTU   int                   `json:"routeMTU"`
	Agent      models.AgentState     `json:"agent"`
}

// PodConfig returns the part of the agent's configuration that the plugin uses, also while the agent is starting; see [Client.WaitConfig].
func (c *Client) PodConfig(ctx context.Context) (*PodConfig, error) {
	var config struct {
		Status PodConfig `json:"status"`
	}
	err := c.call(ctx, "get the configuration", request{method: "GET", target: "/v1/config", header: minimal}, &config)
	return &config.Status, err
}

// Status returns the health of the agent; brief asks for the overall status only.
func (c *Client) Status(ctx context.Context, brief bool) (*models.StatusResponse, error) {
	r := request{method: "GET", target: "/v1/healthz"}
	if brief {
		r.header = "brief: true\r\n"
	}
	var status models.StatusResponse
	err := c.call(ctx, "get the status", r, &status)
	return &status, err
}

// AllocateIP allocates the next free address of every enabled family for owner, "namespace/pod". The agent releases the addresses after ten minutes without
// an endpoint; the response holds a UUID for the claim.
func (c *Client) AllocateIP(ctx context.Context, owner string) (*models.IPAMResponse, error) {
	r := request{method: "POST", target: "/v1/ipam", header: "expiration: true\r\n"}
	if owner != "" {
		r.target += "?owner=" + url.QueryEscape(owner)
	}
	var given models.IPAMResponse
	err := c.call(ctx, "allocate an address", r, &given)
	return &given, err
}

// ReleaseIP releases one address. Releasing an address that is not allocated is no error.
func (c *Client) ReleaseIP(ctx context.Context, ip, pool string) error {
	return c.call(ctx, "release address "+ip, request{method: "DELETE",
		target: "/v1/ipam/" + url.PathEscape(ip) + "?pool=" + url.QueryEscape(pool)}, nil)
}

// CreateEndpoint attaches a container. With SyncBuildEndpoint it returns when the endpoint forwards packets.
func (c *Client) CreateEndpoint(ctx context.Context, endpoint models.EndpointChangeRequest) error {
	return c.call(ctx, "create the endpoint", request{method: "PUT", target: "/v1/endpoint/cilium-local:0", body: endpoint}, nil)
}

// DeleteEndpoint removes one endpoint; id is "[prefix:]id".
func (c *Client) DeleteEndpoint(ctx context.Context, id string) error {
	return c.call(ctx, "delete endpoint "+id, request{method: "DELETE", target: "/v1/endpoint/" + url.PathEscape(id)}, nil)
}

// EndpointHealth returns the health of one endpoint.
func (c *Client) EndpointHealth(ctx context.Context, id string) (*models.EndpointHealth, error) {
	var health models.EndpointHealth
	err := c.call(ctx, "get the health of endpoint "+id,
		request{method: "GET", target: "/v1/endpoint/" + url.PathEscape(id) + "/healthz"}, &health)
	return &health, err
}

// Attachments lists the ids of all attachments, "<container id>:<interface>".
func (c *Client) Attachments(ctx context.Context) ([]string, error) {
	var endpoints []struct {
		Status struct {
			Identifiers models.EndpointIdentifiers `json:"external-identifiers"`
		} `json:"status"`
	}
	if err := c.call(ctx, "list the endpoints", request{method: "GET", target: "/v1/endpoint"}, &endpoints); err != nil {
		return nil, err
	}
	ids := make([]string, 0, len(endpoints))
	for _, e := range endpoints {
		ids = append(ids, e.Status.Identifiers.CNIAttachmentID)
	}
	return ids, nil
}

// call sends a request and decodes a successful response into value, unless value is nil. op names the attempted operation in errors.
func (c *Client) call(ctx context.Context, op string, r request, value any) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, RequestTimeout)
		defer cancel()
	}
	a, err := c.exchange(ctx, r)
	switch {
	case err != nil:
		return noResponse(op, c.socket, err)
	case a.status >= 300:
		return newError(op, a.status, a.line, a.body)
	case value == nil || len(a.body) == 0:
		return nil
	}
	if err := json.Unmarshal(a.body, value); err != nil {
		return fmt.Errorf("%s: read the answer of the agent at %s: %w", op, c.socket, err)
	}
	return nil
}
