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

	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	readyPath    = "/readyz"
	probeTimeout = 5 * time.Second
	probePause   = time.Second // minimum time between two probes
	probeSpread  = 2 * time.Second
)

// Servers returns the state of each address, and a channel that is closed when a state changes.
func (c *Client) Servers() ([]apiservers.Server, <-chan struct{}) { return c.servers.snapshot() }

// Run probes the readiness of the active server: at the start, whenever the result of a request or a watch requires it, and every few seconds until the
// server is ready. While requests succeed it sends no probes. It returns when ctx ends.
func (c *Client) Run(ctx context.Context) error {
	for {
		watchdog.Idle(ctx)
		if c.servers.healthy() {
			select {
			case <-ctx.Done():
				return nil
			case <-c.servers.doubt:
			}
		}
		watchdog.Busy(ctx)
		c.probe(ctx)
		if watchdog.Sleep(ctx, probePause+rand.N(probeSpread)) != nil {
			return nil
		}
	}
}

// probe probes the active server and records the result.
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
	var down unreachable
	switch {
	case ctx.Err() != nil, errors.As(err, &down): // stopping, or recorded already
		return
	case err != nil && asking.Err() != nil:
		c.servers.failed(i, apiservers.No, fmt.Sprintf("no answer within %s", probeTimeout))
		return
	case err != nil:
		c.servers.unasked(i, explain(err)) // for instance, the token file is unreadable
		return
	}
	defer func() { _ = response.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	i, _ = c.servers.current()
	switch code := response.StatusCode; {
	case code >= http.StatusInternalServerError:
		c.servers.failed(i, apiservers.Yes, fmt.Sprintf("not ready: %s%s", response.Status, failedChecks(string(body))))
	case code != http.StatusUnauthorized: // 401 is recorded already
		c.servers.responded(i, "")
	}
}

// failedChecks returns the lines of /readyz with failed checks.
func failedChecks(body string) string {
	var out []string
	for line := range strings.Lines(body) {
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
