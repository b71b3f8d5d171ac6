package agentclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waggle-net/waggle/api/v1/models"
)

// Timeouts holds the timeouts of [Client.WaitConfig].
type Timeouts struct {
	Absent   time.Duration // timeout without a response, from the agent's last response on; 0 means one attempt
	Starting time.Duration // timeout of the whole wait while the agent reports that it is starting
}

// pollInterval is the time between two attempts.
const pollInterval = 50 * time.Millisecond

// WaitConfig returns the configuration when the agent can attach pods. It retries while the agent is unreachable, ends during the request or is starting;
// after the timeout it returns the error of the last attempt: [ErrUnreachable], [Interrupted], or [ErrStarting] with the missing conditions.
func (c *Client) WaitConfig(ctx context.Context, timeouts Timeouts) (*PodConfig, error) {
	begin := time.Now()
	longest := max(timeouts.Starting, timeouts.Absent)
	var heard time.Duration // from begin to the agent's last response
	for {
		// An agent that accepts the connection and sends nothing must not block the caller longer than a starting agent.
		attempt, cancel := context.WithDeadline(ctx, begin.Add(max(longest, time.Second)))
		config, err := c.PodConfig(attempt)
		cancel()
		limit := timeouts.Starting
		switch {
		case err == nil && config.Agent.State != models.AgentStateStateStarting:
			return config, nil
		case err == nil:
			heard = time.Since(begin)
			err = fmt.Errorf("%w: it waits for %s", ErrStarting, orNothing(config.Agent.WaitingFor))
		case errors.Is(err, ErrUnreachable), Interrupted(err): // an agent that was killed during the request; repeating the request changes nothing
			limit = min(heard+timeouts.Absent, longest)
		case Status(err) == 503:
			heard = time.Since(begin)
		default:
			return nil, err
		}
		if time.Since(begin)+pollInterval >= limit { // an attempt at the limit would have no time left
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, ctx.Err())
		case <-time.After(pollInterval):
		}
	}
}

func orNothing(reasons []string) string {
	if len(reasons) == 0 {
		return "an unnamed condition"
	}
	return strings.Join(reasons, "; ")
}
