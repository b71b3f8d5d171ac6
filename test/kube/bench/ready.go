package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"time"
)

const (
	agentSocket = "/var/run/waggle/waggle.sock"
	// pollInterval is the resolution of the time to ready. [kube.Node.WaitAgentReady] starts a process for each query, with a pause of at least 50 ms between two
	// queries, so its resolution is 0.1 to 0.2 s.
	pollInterval = 10 * time.Millisecond
	// pollTime is the time after which the resolution of WaitAgentReady suffices.
	pollTime = 3 * time.Second
)

// awaitReady waits until the agent reports that pods can be attached. It reads the status of the agent through the agent's socket.
func (m *measurement) awaitReady(ctx context.Context) error {
	socket := m.node.Path(agentSocket)
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
	for began := time.Now(); ctx.Err() == nil && time.Since(began) < pollTime; time.Sleep(pollInterval) {
		if isReady(ctx, client) {
			return nil
		}
	}
	return m.node.WaitAgentReady(ctx) // its error contains the status and the logs
}

// isReady reports whether the agent replies and pods can be attached, as "waggle status --brief" does with its exit code.
func isReady(ctx context.Context, client *http.Client) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/v1/healthz", http.NoBody)
	if err != nil {
		return false
	}
	request.Header.Set("brief", "true")
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	var status struct{ Cilium struct{ State string } }
	err = json.NewDecoder(response.Body).Decode(&status)
	return err == nil && status.Cilium.State != "" && status.Cilium.State != "Failure"
}
