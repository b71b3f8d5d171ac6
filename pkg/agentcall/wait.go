package agentcall

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waggle-net/waggle/api/v1/models"
)

// Patience says how long [Client.WaitConfig] waits.
type Patience struct {
	Absent   time.Duration // for an agent that nobody hears of, from its last answer on; 0 means one attempt
	Starting time.Duration // in all, for one that answers that it is starting
}

// pollInterval is the time between two attempts.
const pollInterval = 50 * time.Millisecond

// WaitConfig gets the configuration once pods can be attached. An agent that does not answer, or that is starting, is
// asked again within patience; then the error is [ErrUnreachable] or [ErrStarting], with what is missing.
func (c *Client) WaitConfig(ctx context.Context, patience Patience) (*Config, error) {
	begin := time.Now()
	longest := max(patience.Starting, patience.Absent)
	var heard time.Duration // from begin to its last answer
	for {
		// An agent that takes the connection and then says nothing must not hold us longer than a starting one.
		attempt, cancel := context.WithDeadline(ctx, begin.Add(max(longest, time.Second)))
		config, err := c.Config(attempt)
		cancel()
		limit := patience.Starting
		switch {
		case err == nil && config.Agent.State != models.AgentStateStateStarting:
			return config, nil
		case err == nil:
			heard = time.Since(begin)
			err = fmt.Errorf("%w: it waits for %s", ErrStarting, orNothing(config.Agent.WaitingFor))
		case errors.Is(err, ErrUnreachable):
			limit = min(heard+patience.Absent, longest)
		case Status(err) == 503:
			heard = time.Since(begin)
		default:
			return nil, err
		}
		if time.Since(begin)+pollInterval >= limit { // an attempt at the limit itself would have no time
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
		return "nothing that it names"
	}
	return strings.Join(reasons, "; ")
}
