package cni

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/waggle-net/waggle/pkg/agentcall"
)

// Patience of ADD and CHECK; runtimes repeat the call later in any case.
const (
	absentPatience   = 5 * time.Second  // an agent whose pod is replaced is back sooner; kubelet's next attempt is 10 s later
	startingPatience = 30 * time.Second // for an agent that says that it is starting
)

// Statuses of HTTP with a meaning of their own here; package net/http would cost more than the rest of the start.
const (
	badRequest      = 400
	forbidden       = 403
	notFound        = 404
	tooManyRequests = 429
	unavailable     = 503
)

// waitReady returns the agent's configuration once pods can be attached.
func waitReady(ctx context.Context, agent *agentcall.Client) (*agentcall.Config, *types.Error) {
	config, err := agent.WaitConfig(ctx, agentcall.Patience{Absent: absentPatience, Starting: startingPatience})
	if err != nil {
		return nil, agentFailure(types.ErrTryAgainLater, agent, err)
	}
	return config, nil
}

// agentFailure explains an error of a call to the agent. Refused is the code for an agent that answered.
func agentFailure(refused uint, agent *agentcall.Client, err error) *types.Error {
	switch status := agentcall.Status(err); {
	case status == forbidden:
		return failure(refused, err, "permit the call with the agent's --enable-cilium-api-server-access")
	case status == tooManyRequests || status == unavailable:
		return failure(types.ErrTryAgainLater, err, "the agent is busy: the runtime repeats the call")
	case status != 0:
		return failure(refused, err, "see waggle status, waggle endpoint list and the agent's log")
	case errors.Is(err, agentcall.ErrStarting):
		return failure(types.ErrTryAgainLater, fmt.Errorf("%w (socket %s)", err, agent.Socket()), "see waggle status")
	default:
		return failure(types.ErrTryAgainLater, err, agentRemedy(agent.Socket()))
	}
}

func agentRemedy(socket string) string {
	return "the agent of this node serves " + socket + " while it runs (its --socket-path or --state-dir); see its log"
}
