package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waggle-net/waggle/pkg/agentclient"
	"github.com/waggle-net/waggle/pkg/monitorwire"
	"github.com/waggle-net/waggle/pkg/printable"
)

// monitorSocketName is the socket's file name in the state directory.
const monitorSocketName = "monitor1_2.sock"

const (
	kindDrop    = "drop"
	kindVerdict = "policy-verdict"
	kindWhy     = "why" // added by the agent to the preceding drop, and printed with it
)

// filter selects the events that monitor prints.
type filter struct {
	kinds    []string // empty means all
	endpoint uint16   // 0 means all
}

func (a *app) monitorCommand() *cobra.Command {
	var socket string
	var f filter
	cmd := &cobra.Command{
		Use: "monitor", Short: "Print events of the datapath as they happen", Args: cobra.NoArgs,
		Example: "  waggle monitor -t drop\n  waggle monitor --related-to 12 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, kind := range f.kinds {
				if kind != kindDrop && kind != "trace" && kind != kindVerdict {
					return usage{fmt.Errorf("-t %q: use drop, trace or policy-verdict", kind)}
				}
			}
			if a.output == "yaml" {
				return usage{errors.New("-o yaml: events are a stream; use json, one event per line")}
			}
			if socket == "" {
				socket = a.beside(monitorSocketName)
			}
			return a.monitor(cmd.Context(), strings.TrimPrefix(socket, "unix://"), f)
		},
	}
	cmd.Flags().StringSliceVarP(&f.kinds, "type", "t", nil, "Print only these types: drop, trace, policy-verdict")
	cmd.Flags().Uint16Var(&f.endpoint, "related-to", 0, "Print only events of the endpoint with this id")
	cmd.Flags().StringVar(&socket, "monitor-socket", "",
		"Socket of the stream (default: "+monitorSocketName+" beside the agent's socket)")
	return a.withOutput(cmd)
}

// monitor prints events until Ctrl-C or until the agent stops.
func (a *app) monitor(ctx context.Context, socket string, f filter) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("watch events: %w at %s: %w: check that waggle-agent runs and that its --monitor-socket-path is this path",
			agentclient.ErrUnreachable, socket, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if a.output == "" {
		fmt.Fprintln(a.stderr, "Watching events; Ctrl-C ends.")
	}
	stream := monitorwire.NewDecoder(conn)
	for {
		payload, err := stream.Next()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the agent ended the stream of events at %s", socket)
		case err != nil:
			return fmt.Errorf("read events from %s: %w", socket, err)
		}
		if err := a.printEvent(payload, f); err != nil {
			return err
		}
	}
}

func (a *app) printEvent(payload monitorwire.Payload, f filter) error {
	e := describe(payload)
	if !f.wants(e) {
		return nil
	}
	if a.output == "json" {
		e.Time = time.Now().UTC().Format(time.RFC3339Nano)
		return json.NewEncoder(a.stdout).Encode(e)
	}
	_, err := fmt.Fprintln(a.stdout, printable.Text(e.text()))
	return err
}

// wants reports whether the filter selects an event. It always selects reports of lost events.
func (f filter) wants(e event) bool {
	if e.Type == "lost" {
		return true
	}
	matches := len(f.kinds) == 0
	for _, kind := range f.kinds {
		matches = matches || kind == e.Type || kind == kindDrop && e.Type == kindWhy
	}
	return matches && (f.endpoint == 0 || e.Endpoint == f.endpoint || e.TargetEndpoint == uint32(f.endpoint))
}
