package client

import (
	"context"
	"net/http"
	"strconv"

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

// EndpointLog returns the log of one endpoint, newest entry first.
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

// NodeIDs lists the ids of nodes and their addresses; this node has id 0.
func (c *Client) NodeIDs(ctx context.Context) ([]models.NodeID, error) {
	return call[[]models.NodeID](ctx, c, "list the ids of nodes",
		func(ctx context.Context) (*http.Response, error) { return c.api.GetNodeIds(ctx) })
}

// Identity returns one identity; id is its number.
func (c *Client) Identity(ctx context.Context, id string) (*models.Identity, error) {
	return call[*models.Identity](ctx, c, "get identity "+id,
		func(ctx context.Context) (*http.Response, error) { return c.api.GetIdentityID(ctx, id) })
}

// IPs returns the addresses and prefixes whose identity the node knows. If cidr is not empty, it returns only those inside this prefix or address.
func (c *Client) IPs(ctx context.Context, cidr string) ([]models.IPListEntry, error) {
	params := &models.GetIPParams{}
	if cidr != "" {
		params.CIDR = &cidr
	}
	return call[[]models.IPListEntry](ctx, c, "list the addresses "+cidr,
		func(ctx context.Context) (*http.Response, error) { return c.api.GetIP(ctx, params) })
}

// Policy returns all policies.
func (c *Client) Policy(ctx context.Context) (*models.Policy, error) {
	return call[*models.Policy](ctx, c, "get the policies",
		func(ctx context.Context) (*http.Response, error) { return c.api.GetPolicy(ctx) })
}

// PolicySelectors returns the selectors of peers in all policies.
func (c *Client) PolicySelectors(ctx context.Context) (models.SelectorCache, error) {
	return call[models.SelectorCache](ctx, c, "get the selectors of policies",
		func(ctx context.Context) (*http.Response, error) { return c.api.GetPolicySelectors(ctx) })
}

// PolicyExplain returns the verdict on a connection between two peers, and its reason.
func (c *Client) PolicyExplain(ctx context.Context, p models.GetPolicyExplainParams) (*models.PolicyExplanation, error) {
	return call[*models.PolicyExplanation](ctx, c, "explain the policy from "+p.From+" to "+p.To,
		func(ctx context.Context) (*http.Response, error) { return c.api.GetPolicyExplain(ctx, &p) })
}

// PolicyWhatIf returns the recorded flows whose verdict would change with a change of policies. It changes no policy.
func (c *Client) PolicyWhatIf(ctx context.Context, change models.PolicyWhatIf) (*models.PolicyDifference, error) {
	return call[*models.PolicyDifference](ctx, c, "evaluate the change of policies",
		func(ctx context.Context) (*http.Response, error) { return c.api.PostPolicyWhatIf(ctx, change) })
}

// Services returns the frontends of services, each with its backends.
func (c *Client) Services(ctx context.Context) ([]models.Service, error) {
	return call[[]models.Service](ctx, c, "list the services",
		func(ctx context.Context) (*http.Response, error) { return c.api.GetService(ctx) })
}

// Service returns one frontend of a service.
func (c *Client) Service(ctx context.Context, id int64) (*models.Service, error) {
	return call[*models.Service](ctx, c, "get service "+strconv.FormatInt(id, 10),
		func(ctx context.Context) (*http.Response, error) { return c.api.GetServiceID(ctx, id) })
}
