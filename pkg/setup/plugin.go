package setup

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"time"
)

// callTimeout limits one call of the plugin; the plugin waits up to a minute for the agent.
const callTimeout = 90 * time.Second

// plugin runs the installed plugin as a container runtime does.
type plugin struct {
	path   string
	config config
}

// config is the network configuration, equal to the plugin's entry in the agent's conflist.
type config struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	SocketPath string          `json:"socket-path"`
	StateDir   string          `json:"state-dir"`
	LogFile    string          `json:"log-file,omitempty"`
	Previous   json.RawMessage `json:"prevResult,omitempty"`
}

// result holds the fields of the plugin's result that the test reads.
type result struct {
	IPs []struct {
		Address netip.Prefix `json:"address"`
		Gateway netip.Addr   `json:"gateway"`
	} `json:"ips"`
	raw json.RawMessage // for CHECK and DEL
}

// call runs one command; out may be nil. It names no pod, so the agent waits for no Pod object.
func (p *plugin) call(ctx context.Context, command, container, netns string, previous json.RawMessage, out *result) error {
	config := p.config
	config.CNIVersion, config.Previous = "1.0.0", previous
	input, err := json.Marshal(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.path)
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + container, "CNI_NETNS=" + netns, "CNI_IFNAME=" + interfaceName,
		"CNI_ARGS=IgnoreUnknown=1", "CNI_PATH=" + filepath.Dir(p.path)}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", p.path, command, err, failure(stdout.Bytes(), stderr.Bytes()))
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(stdout.Bytes(), out); err != nil {
		return fmt.Errorf("%s %s: read its result: %w", p.path, command, err)
	}
	out.raw = bytes.Clone(stdout.Bytes())
	return nil
}

// failure returns the plugin's error message in the CNI format, or else all of its output.
func failure(stdout, stderr []byte) string {
	var result struct {
		Code    int    `json:"code"`
		Msg     string `json:"msg"`
		Details string `json:"details"`
	}
	if json.Unmarshal(stdout, &result) != nil || result.Msg == "" {
		return fmt.Sprintf("%.500q", append(bytes.TrimSpace(stdout), bytes.TrimSpace(stderr)...))
	}
	message := fmt.Sprintf("%s (code %d)", result.Msg, result.Code)
	if result.Details != "" {
		message += ": " + result.Details
	}
	return message
}
