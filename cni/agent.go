package cni

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/waggle-net/waggle/pkg/agentclient"
)

// Timeouts of ADD and CHECK. The runtime repeats a failed call later.
const (
	absentTimeout   = 5 * time.Second  // an agent whose pod is replaced returns sooner; kubelet's next attempt is 10 s later
	startingTimeout = 30 * time.Second // for an agent that reports that it is starting
)

// HTTP status codes that the plugin handles. Importing net/http would cost more than the rest of the program's start.
const (
	badRequest      = 400
	forbidden       = 403
	notFound        = 404
	tooManyRequests = 429
	unavailable     = 503
)

// waitReady waits until pods can be attached and returns the agent's configuration.
func waitReady(ctx context.Context, agent *agentclient.Client) (*agentclient.PodConfig, *types.Error) {
	config, err := agent.WaitConfig(ctx, agentclient.Timeouts{Absent: absentTimeout, Starting: startingTimeout})
	if err != nil {
		return nil, agentFailure(types.ErrTryAgainLater, agent, err)
	}
	return config, nil
}

// agentFailure converts an error of a call to the agent. rejectedCode is the code for a call that the agent rejected.
func agentFailure(rejectedCode uint, agent *agentclient.Client, err error) *types.Error {
	switch status := agentclient.Status(err); {
	case status == forbidden:
		return failure(rejectedCode, err, "permit the call with the agent's --enable-cilium-api-server-access")
	case status == tooManyRequests || status == unavailable:
		return failure(types.ErrTryAgainLater, err, "the agent is busy: the runtime repeats the call")
	case status != 0:
		return failure(rejectedCode, err, "see waggle status, waggle endpoint list and the agent's log")
	case errors.Is(err, agentclient.ErrStarting):
		return failure(types.ErrTryAgainLater, fmt.Errorf("%w (socket %s)", err, agent.Socket()), "see waggle status")
	default:
		return failure(types.ErrTryAgainLater, err, agentRemedy(agent.Socket()))
	}
}

func agentRemedy(socket string) string {
	return "the agent of this node serves " + socket + " while it runs (its --socket-path or --state-dir); see its log"
}
