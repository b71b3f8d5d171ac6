package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/waggle-net/waggle/test/nodekit"
)

// Parts that a test build can freeze: the work of a loop, and the write transactions of a table.
const (
	frozenLoop  = "loop endpoint-maps/fill-endpoint-maps"
	frozenTable = "table endpoints"
)

// hangs measures the time until liveness fails after a loop or a write transaction hangs, with the limits of a release, and the time in which an agent with a
// hanging loop stops.
func (b *bench) hangs(ctx context.Context) error {
	agent, err := frozenAgent()
	if err != nil {
		return err
	}
	var loops, tables, stops, seconds []time.Duration
	for round := range b.atMost(2) {
		h, err := b.newHanging(ctx, agent)
		if err != nil {
			return err
		}
		err = func() error {
			defer h.Close()
			table, err := h.red(ctx, frozenTable, func() error { return nil })
			if err != nil {
				return err
			}
			loop, err := h.red(ctx, frozenLoop, func() error { return h.callADD(ctx, fmt.Sprintf("pod-%d", round)) })
			if err != nil {
				return err
			}
			tables, loops = append(tables, table), append(loops, loop)
			return nil
		}()
		if err != nil {
			return err
		}
	}
	for round := range b.atMost(3) {
		for _, signals := range []int{1, 2} {
			took, err := b.stopOfHanging(ctx, agent, signals, round)
			if err != nil {
				return err
			}
			if signals == 1 {
				stops = append(stops, took)
			} else {
				seconds = append(seconds, took)
			}
		}
	}
	b.promised("liveness is red because of a loop that hangs", loops, frozenLoopBudget)
	b.promised("liveness is red because of a write transaction that is held", tables, frozenTableBudget)
	b.promised("SIGTERM to the end of an agent with a loop that hangs", stops, stopBudget)
	b.promised("second signal to the end of an agent with a loop that hangs", seconds, secondStopBudget)
	return nil
}

// frozenAgent builds an agent whose loops can be frozen. It has the limits of a release.
func frozenAgent() (path string, err error) {
	dir, err := os.MkdirTemp("", "waggle-bench-")
	if err != nil {
		return "", err
	}
	return nodekit.NewBuilds(dir).Agent(nodekit.Build{Tags: "freeze"})
}

// hanging is a node whose agent's loops can be frozen.
type hanging struct{ *nodekit.Node }

func (b *bench) newHanging(ctx context.Context, agent string) (hanging, error) {
	node, err := nodekit.New(nodekit.Options{BinDir: b.bin, AgentArgs: []string{installedStop}})
	if err != nil {
		return hanging{}, err
	}
	node.UseAgent(agent)
	return hanging{node}, errors.Join(node.StartAgent(), waitReady(ctx, node))
}

// freeze freezes the loop or table with a name; an empty name unfreezes all.
func (h hanging) freeze(name string) error {
	return os.WriteFile(filepath.Join(h.StateDir(), "freeze"), []byte(name), 0o600)
}

// callADD starts an ADD, which gives loops work, and returns when the agent has the endpoint.
func (h hanging) callADD(ctx context.Context, name string) error {
	pod, err := h.NewPod(name) // removed with the node
	if err != nil {
		return err
	}
	go func() { _ = pod.Attach(ctx) }()
	return await(ctx, 5*time.Millisecond, func() error {
		rows, err := h.Waggle(ctx, "endpoint", "list", "-o", "json")
		if err == nil && !strings.Contains(rows, pod.ContainerID) {
			err = fmt.Errorf("the agent has no endpoint for pod %s", name)
		}
		return err
	})
}

// red freezes a loop or table, calls stir and measures the time until liveness names the loop or table. It unfreezes and waits until liveness succeeds again.
func (h hanging) red(ctx context.Context, name string, stir func() error) (took time.Duration, err error) {
	if err := errors.Join(h.freeze(name), stir()); err != nil {
		return 0, err
	}
	if took, err = timed(func() error { return h.liveness(ctx, http.StatusServiceUnavailable, name) }); err != nil {
		return 0, fmt.Errorf("%s hangs: %w", name, err)
	}
	return took, errors.Join(h.freeze(""), h.liveness(ctx, http.StatusOK, ""))
}

// liveness waits until the agent's health port returns a status and names a loop or table.
func (h hanging) liveness(ctx context.Context, status int, name string) error {
	return await(ctx, 50*time.Millisecond, func() error {
		var conn net.Conn
		if err := h.Do(func() (err error) {
			conn, err = net.DialTimeout("tcp", "127.0.0.1:9879", 10*time.Second)
			return err
		}); err != nil {
			return err
		}
		defer conn.Close()
		transport := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9879/healthz", nil)
		if err != nil {
			return err
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err == nil && (response.StatusCode != status || !strings.Contains(string(body), name)) {
			err = fmt.Errorf("liveness is %d %q, want %d and %q", response.StatusCode, body, status, name)
		}
		return err
	})
}

// stopOfHanging measures the time from the last of one or two signals to the exit of an agent with a hanging loop.
func (b *bench) stopOfHanging(ctx context.Context, agent string, signals, round int) (took time.Duration, err error) {
	h, err := b.newHanging(ctx, agent)
	if err != nil {
		return 0, err
	}
	defer h.Close()
	if err := errors.Join(h.freeze(frozenLoop), h.callADD(ctx, fmt.Sprintf("waits-%d", round))); err != nil {
		return 0, err
	}
	if signals == 2 {
		if err := syscall.Kill(h.AgentPID(), syscall.SIGTERM); err != nil {
			return 0, err
		}
		if err := await(ctx, time.Millisecond, func() error {
			if !strings.Contains(h.AgentLog(), "Stopping hive") {
				return errors.New("the agent does not stop")
			}
			return nil
		}); err != nil {
			return 0, err
		}
	}
	times := stopTimes{}
	err = times.stop(ctx, h.Node)
	return times.took[0], err
}
