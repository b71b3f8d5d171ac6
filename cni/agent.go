package cni

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/client"
)

// Patience of ADD and CHECK; runtimes repeat the call later in any case.
const (
	absentPatience   = 1500 * time.Millisecond // an agent that is being restarted is back sooner
	startingPatience = 30 * time.Second        // for an agent that says that it is starting
)

// waitReady returns the agent's configuration once pods can be attached.
func waitReady(ctx context.Context, agent *client.Client) (*models.DaemonConfigurationStatus, *types.Error) {
	config, err := agent.WaitConfig(ctx, client.Patience{Absent: absentPatience, Starting: startingPatience})
	if err != nil {
		return nil, agentFailure(types.ErrTryAgainLater, agent, err)
	}
	return &config.Status, nil
}

// agentFailure explains an error of a call to the agent. Refused is the code for an agent that answered.
func agentFailure(refused uint, agent *client.Client, err error) *types.Error {
	switch status := client.Status(err); {
	case status == http.StatusForbidden:
		return failure(refused, err, "permit the call with the agent's --enable-cilium-api-server-access")
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		return failure(types.ErrTryAgainLater, err, "the agent is busy: the runtime repeats the call")
	case status != 0:
		return failure(refused, err, "see waggle status, waggle endpoint list and the agent's log")
	case errors.Is(err, client.ErrStarting):
		return failure(types.ErrTryAgainLater, fmt.Errorf("%w (socket %s)", err, agent.Socket()), "see waggle status")
	default:
		return failure(types.ErrTryAgainLater, err, agentRemedy(agent.Socket()))
	}
}

func agentRemedy(socket string) string {
	return "check that waggle-agent runs on this node and serves " + socket + " (its --socket-path or --state-dir), and its log"
}
