package agentclient

import (
	"context"
	"net/url"
	"strconv"

	"github.com/waggle-net/waggle/api/v1/models"
)

// get reads a path of the agent, escaped and with its query, and decodes the response into a T. op names the attempted operation in errors.
func get[T any](ctx context.Context, c *Client, op, target string) (value T, err error) {
	err = c.call(ctx, op, request{method: "GET", target: target}, &value)
	return value, err
}

// Config returns the agent's configuration.
func (c *Client) Config(ctx context.Context) (*models.DaemonConfiguration, error) {
	return get[*models.DaemonConfiguration](ctx, c, "get the configuration", "/v1/config")
}

// Endpoints returns all endpoints.
func (c *Client) Endpoints(ctx context.Context) ([]models.Endpoint, error) {
	return get[[]models.Endpoint](ctx, c, "list the endpoints", "/v1/endpoint")
}

// Endpoint returns one endpoint; id is "[prefix:]id".
func (c *Client) Endpoint(ctx context.Context, id string) (*models.Endpoint, error) {
	return get[*models.Endpoint](ctx, c, "get endpoint "+id, "/v1/endpoint/"+url.PathEscape(id))
}

// EndpointLog returns the log of one endpoint, newest entry first.
func (c *Client) EndpointLog(ctx context.Context, id string) ([]models.EndpointStatusChange, error) {
	return get[[]models.EndpointStatusChange](ctx, c, "get the log of endpoint "+id, "/v1/endpoint/"+url.PathEscape(id)+"/log")
}

// EndpointLabels returns the labels of one endpoint.
func (c *Client) EndpointLabels(ctx context.Context, id string) (*models.LabelConfiguration, error) {
	return get[*models.LabelConfiguration](ctx, c, "get the labels of endpoint "+id, "/v1/endpoint/"+url.PathEscape(id)+"/labels")
}

// Map returns one map with its entries.
func (c *Client) Map(ctx context.Context, name string) (*models.BPFMap, error) {
	return get[*models.BPFMap](ctx, c, "get map "+name, "/v1/map/"+url.PathEscape(name))
}

// Nodes returns all nodes of the cluster.
func (c *Client) Nodes(ctx context.Context) (*models.ClusterNodeStatus, error) {
	return get[*models.ClusterNodeStatus](ctx, c, "list the nodes", "/v1/cluster/nodes")
}

// NodeIDs lists the ids of nodes and their addresses; this node has id 0.
func (c *Client) NodeIDs(ctx context.Context) ([]models.NodeID, error) {
	return get[[]models.NodeID](ctx, c, "list the ids of nodes", "/v1/node/ids")
}

// Identity returns one identity; id is its number.
func (c *Client) Identity(ctx context.Context, id string) (*models.Identity, error) {
	return get[*models.Identity](ctx, c, "get identity "+id, "/v1/identity/"+url.PathEscape(id))
}

// IPs returns the addresses and prefixes whose identity the node knows. If cidr is not empty, it returns only those inside this prefix or address.
func (c *Client) IPs(ctx context.Context, cidr string) ([]models.IPListEntry, error) {
	target := "/v1/ip"
	if cidr != "" {
		target += "?cidr=" + url.QueryEscape(cidr)
	}
	return get[[]models.IPListEntry](ctx, c, "list the addresses "+cidr, target)
}

// PolicySelectors returns the selectors of peers in all policies.
func (c *Client) PolicySelectors(ctx context.Context) (models.SelectorCache, error) {
	return get[models.SelectorCache](ctx, c, "get the selectors of policies", "/v1/policy/selectors")
}

// PolicyExplain returns the verdict on a connection between two peers, and its reason.
func (c *Client) PolicyExplain(ctx context.Context, p models.GetPolicyExplainParams) (*models.PolicyExplanation, error) {
	query := url.Values{"from": {p.From}, "to": {p.To}, "port": {p.Port}}
	return get[*models.PolicyExplanation](ctx, c, "explain the policy from "+p.From+" to "+p.To, "/v1/policy/explain?"+query.Encode())
}

// PolicyWhatIf returns the recorded flows whose verdict would change with a change of policies. It changes no policy.
func (c *Client) PolicyWhatIf(ctx context.Context, change models.PolicyWhatIf) (difference *models.PolicyDifference, err error) {
	err = c.call(ctx, "evaluate the change of policies", request{method: "POST", target: "/v1/policy/what-if", body: change}, &difference)
	return difference, err
}

// Services returns the frontends of services, each with its backends.
func (c *Client) Services(ctx context.Context) ([]models.Service, error) {
	return get[[]models.Service](ctx, c, "list the services", "/v1/service")
}

// Service returns one frontend of a service.
func (c *Client) Service(ctx context.Context, id int64) (*models.Service, error) {
	number := strconv.FormatInt(id, 10)
	return get[*models.Service](ctx, c, "get service "+number, "/v1/service/"+number)
}
