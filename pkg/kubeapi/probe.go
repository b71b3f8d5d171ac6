package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
)

const (
	readyPath    = "/readyz"
	probeTimeout = 5 * time.Second
	probePause   = time.Second // between two questions at least
	probeSpread  = 2 * time.Second
)

// Servers returns what is known of each address, and a channel that is closed when that changes.
func (c *Client) Servers() ([]apiservers.Server, <-chan struct{}) { return c.servers.snapshot() }

// Run asks the server in use whether it is ready: at first, whenever a request or a watch makes that doubtful, and every
// few seconds until it is. While requests succeed it asks nothing. It returns when ctx ends.
func (c *Client) Run(ctx context.Context) error {
	for {
		heartbeat.Idle(ctx)
		if c.servers.healthy() {
			select {
			case <-ctx.Done():
				return nil
			case <-c.servers.doubt:
			}
		}
		heartbeat.Busy(ctx)
		c.probe(ctx)
		if heartbeat.Sleep(ctx, probePause+rand.N(probeSpread)) != nil {
			return nil
		}
	}
}

// probe asks one server. All outcomes become facts about that server.
func (c *Client) probe(ctx context.Context) {
	i, _ := c.servers.current()
	asking, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(asking, http.MethodGet, c.base+readyPath, http.NoBody)
	if err != nil {
		c.servers.unasked(i, err.Error())
		return
	}
	response, err := c.http.Do(request)
	var away unreachable
	switch {
	case ctx.Err() != nil, errors.As(err, &away): // nobody wants to know, or it is recorded already
		return
	case err != nil && asking.Err() != nil:
		c.servers.failed(i, apiservers.No, fmt.Sprintf("no answer within %s", probeTimeout))
		return
	case err != nil:
		c.servers.unasked(i, explain(err)) // for instance a file with the token that cannot be read
		return
	}
	defer func() { _ = response.Body.Close() }()
	said, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	i, _ = c.servers.current()
	switch code := response.StatusCode; {
	case code >= http.StatusInternalServerError:
		c.servers.failed(i, apiservers.Yes, fmt.Sprintf("not ready: %s%s", response.Status, failedChecks(string(said))))
	case code != http.StatusUnauthorized: // which is recorded already
		c.servers.answered(i, "")
	}
}

// failedChecks picks the lines of /readyz that tell what is wrong.
func failedChecks(said string) string {
	var out []string
	for line := range strings.Lines(said) {
		if name, found := strings.CutPrefix(line, "[-]"); found {
			name, _, _ = strings.Cut(name, " ")
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return ", failed: " + strings.Join(out, ", ")
}
