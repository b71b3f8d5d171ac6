package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"
)

const (
	// maxConf limits the size of the configuration in bytes. A conflist has a few hundred bytes, prevResult a few thousand.
	maxConf = 1 << 20
	// defaultStateDir contains the agent's socket and the deletion queue; it is the default of the agent's --state-dir.
	defaultStateDir = "/var/run/waggle"

	maxMTU = 65535 // bytes, of veth
	minMTU = 68    // bytes, of IPv4
)

// netConf is the configuration on stdin. Unknown fields are ignored.
type netConf struct {
	types.PluginConf

	SocketPath   string `json:"socket-path"`   // the agent's API; default waggle.sock in the state directory
	StateDir     string `json:"state-dir"`     // as the agent's --state-dir
	MTU          int    `json:"mtu"`           // of the link in bytes; 0 takes the agent's
	LogFile      string `json:"log-file"`      // empty: no log
	LogFormat    string `json:"log-format"`    // "text" (default) or "json"
	EnableDebug  bool   `json:"enable-debug"`  // log every step
	ChainingMode string `json:"chaining-mode"` // only "" and "none": the plugin does not support chaining
}

func (c *netConf) queueDir() string { return filepath.Join(c.StateDir, "deleteQueue") }

func (c *netConf) endpointsDir() string { return filepath.Join(c.StateDir, "endpoints") }

// readConf reads the configuration and never allocates more than its maximum size.
func readConf(r io.Reader) ([]byte, *types.Error) {
	data, err := io.ReadAll(io.LimitReader(r, maxConf+1))
	if err != nil {
		return nil, failure(types.ErrIOFailure, fmt.Errorf("read the network configuration from stdin: %w", err), "")
	}
	if len(data) > maxConf {
		return nil, failure(types.ErrInvalidNetworkConfig,
			fmt.Errorf("the network configuration on stdin has more than %d bytes", maxConf), "shorten the conflist")
	}
	return data, nil
}

// parseConf decodes and checks the configuration. Errors name the field.
func parseConf(data []byte) (*netConf, *types.Error) {
	c := &netConf{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, failure(types.ErrDecodingFailure, fmt.Errorf("decode the network configuration: %w", describe(data, err)),
			"correct the conflist in the runtime's configuration directory")
	}
	if err := c.check(); err != nil {
		return nil, failure(types.ErrInvalidNetworkConfig, fmt.Errorf("network configuration: %w", err),
			"correct the conflist in the runtime's configuration directory")
	}
	return c, nil
}

// check validates fields and fills in defaults.
func (c *netConf) check() error {
	switch {
	case c.Name == "":
		return errors.New("name: is missing")
	case c.IPAM.Type != "":
		return fmt.Errorf("ipam.type: %.40q: addresses come from the agent, leave ipam out", c.IPAM.Type)
	case c.ChainingMode != "" && c.ChainingMode != "none":
		return fmt.Errorf("chaining-mode: %.40q: this plugin makes the link itself and cannot follow another", c.ChainingMode)
	case c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU):
		return fmt.Errorf("mtu: %d: must be 0 or from %d to %d", c.MTU, minMTU, maxMTU)
	case c.LogFormat != "" && c.LogFormat != "text" && c.LogFormat != "json":
		return fmt.Errorf("log-format: %.40q: must be text or json", c.LogFormat)
	}
	if c.StateDir == "" {
		c.StateDir = defaultStateDir
	}
	if c.SocketPath == "" {
		c.SocketPath = filepath.Join(c.StateDir, "waggle.sock")
	}
	for _, p := range []struct{ field, path string }{
		{"state-dir", c.StateDir}, {"socket-path", c.SocketPath}, {"log-file", c.LogFile}} {
		if p.path != "" && !filepath.IsAbs(p.path) {
			return fmt.Errorf("%s: %.80q: must be an absolute path", p.field, p.path)
		}
	}
	return nil
}

// describe adds the position in the document to an error of the decoder.
func describe(data []byte, err error) error {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		return fmt.Errorf("%s: cannot be a %s", wrongType.Field, wrongType.Value)
	}
	if field := lastField(data); field != "" {
		return fmt.Errorf("at or after field %.80q: %w", field, err)
	}
	return err
}

// lastField returns the last field name before the position where the document is invalid.
func lastField(data []byte) string {
	dec := json.NewDecoder(bytes.NewReader(data))
	var inObject []bool // one element for each open bracket
	last, wantName := "", false
	for {
		token, err := dec.Token()
		if err != nil {
			return last
		}
		if name, ok := token.(string); ok && wantName {
			last, wantName = name, false
			continue
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			inObject = append(inObject, token == json.Delim('{'))
		case json.Delim('}'), json.Delim(']'):
			inObject = inObject[:len(inObject)-1]
		}
		wantName = len(inObject) > 0 && inObject[len(inObject)-1]
	}
}
