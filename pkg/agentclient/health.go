package agentclient

import (
	"context"

	"github.com/waggle-net/waggle/api/v1beta"
)

// NodeHealth returns the nodes and whether the agent reaches them. With probe, the agent probes all of them first, for 20 s at most. The client must use
// the socket of the health API.
func (c *Client) NodeHealth(ctx context.Context, probe bool) (health *v1beta.HealthStatusResponse, err error) {
	op, r := "get the health of the nodes", request{method: "GET", target: v1beta.BasePath + "/status"}
	if probe {
		op, r = "probe the nodes", request{method: "PUT", target: v1beta.BasePath + "/status/probe"}
	}
	err = c.call(ctx, op, r, &health)
	return health, err
}
