package cniconf

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// maxRead is the maximum size of a file that the agent reads, in bytes.
const maxRead = 1 << 20

// list is a CNI configuration list.
type list struct {
	// CNIVersion is the version for runtimes with libcni before 1.2, which do not support 1.1.0. Other runtimes use the highest of CNIVersions that
	// they support.
	CNIVersion  string            `json:"cniVersion"`
	CNIVersions []string          `json:"cniVersions"`
	Name        string            `json:"name"`
	Plugins     []json.RawMessage `json:"plugins"`
}

// plugin is the list's entry of the agent's CNI plugin.
type plugin struct {
	Type       string `json:"type"`
	SocketPath string `json:"socket-path"`
	StateDir   string `json:"state-dir"`
	LogFile    string `json:"log-file,omitempty"`
}

// portmap is the list's entry of the reference plugin for host ports.
type portmap struct {
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities"`
}

// contents returns the desired contents of the file, without plugins that other programs add to it.
func contents(o options, stateDir, socketPath string) ([]byte, error) {
	if o.ReadCNIConf != "" {
		return readConf(o.ReadCNIConf)
	}
	if socketPath == "" {
		socketPath = filepath.Join(stateDir, "waggle.sock")
	}
	l := list{
		CNIVersion:  "1.0.0",
		CNIVersions: []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"},
		Name:        "waggle",
	}
	plugins := []any{plugin{Type: pluginType, SocketPath: socketPath, StateDir: stateDir, LogFile: o.CNILogFile}}
	if o.CNIChainingMode == modePortmap {
		plugins = append(plugins, newPortmap())
	}
	for _, p := range plugins {
		entry, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		l.Plugins = append(l.Plugins, entry)
	}
	return l.encode()
}

func newPortmap() portmap {
	return portmap{Type: "portmap", Capabilities: map[string]bool{"portMappings": true}}
}

// encode returns the contents of a file with the list.
func (l list) encode() ([]byte, error) {
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

// readConf returns the contents of a file unchanged. Contents that are not JSON are an error.
func readConf(path string) ([]byte, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("--read-cni-conf: %w", err)
	}
	if !json.Valid(data) {
		return nil, fmt.Errorf("--read-cni-conf: %s: is not JSON", path)
	}
	return data, nil
}

// readFile returns the contents of a regular file.
func readFile(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // the open of a pipe would wait for a writer
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, cmp.Or(err, fmt.Errorf("%s: is not a regular file", path))
	}
	data, err := io.ReadAll(io.LimitReader(file, maxRead+1))
	if err == nil && len(data) > maxRead {
		err = fmt.Errorf("%s: has more than %d bytes", path, maxRead)
	}
	return data, err
}
