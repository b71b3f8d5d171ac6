package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/waggle-net/waggle/api/v1/models"
)

// Time-outs of ADD and CHECK.
const (
	// absentTimeout is how long a socket that nobody listens on is tried again: an agent that restarts is back sooner.
	absentTimeout = 1500 * time.Millisecond
	// startTimeout is how long an agent may say that it is starting.
	startTimeout = 30 * time.Second
	pollInterval = 50 * time.Millisecond
)

// isAbsent tells whether nobody listens on the agent's socket.
func isAbsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// waitReady returns the agent's configuration once pods can be attached.
func waitReady(ctx context.Context, a agent, socket string) (*models.DaemonConfigurationStatus, *types.Error) {
	begin := time.Now()
	for {
		config, err := a.Config(ctx)
		waited := time.Since(begin)
		switch {
		case err == nil && !starting(config):
			return config, nil
		case isAbsent(err) && waited < absentTimeout:
		case err == nil && waited < startTimeout:
		case isStatus(err, 503) && waited < startTimeout:
		case err == nil:
			return nil, failure(types.ErrTryAgainLater,
				fmt.Errorf("the agent at %s is still starting after %v: %s", socket, startTimeout, waitingFor(config)),
				"see waggle status")
		default:
			return nil, agentFailure(types.ErrTryAgainLater, socket, "connect to the agent at "+socket, err)
		}
		select {
		case <-ctx.Done():
			return nil, failure(types.ErrTryAgainLater, fmt.Errorf("connect to the agent at %s: %w", socket, ctx.Err()), "")
		case <-time.After(pollInterval):
		}
	}
}

// starting tells whether the agent cannot attach pods yet. An agent of another make does not say; there a router address
// is the sign.
func starting(config *models.DaemonConfigurationStatus) bool {
	if config.Agent.State != "" {
		return config.Agent.State == models.AgentStateStateStarting
	}
	return config.Addressing.Ipv4.IP == "" && config.Addressing.Ipv6.IP == ""
}

func waitingFor(config *models.DaemonConfigurationStatus) string {
	if len(config.Agent.WaitingFor) == 0 {
		return "it does not say what it waits for"
	}
	return "it waits for " + strings.Join(config.Agent.WaitingFor, "; ")
}
