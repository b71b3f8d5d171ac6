package agentconfig

import (
	"net"
	"strconv"

	"github.com/cilium/hive/cell"
)

// Listener is a TCP port of the node on which a cell of the agent listens.
type Listener struct {
	Port uint16
	Flag string // flag that sets the port
}

// ListenerOut registers the listener of a cell. Port 0 means no listener.
type ListenerOut struct {
	cell.Out

	Listener Listener `group:"listeners"`
}

// Listeners collects the listeners of all cells.
type Listeners struct {
	cell.In

	All []Listener `group:"listeners"`
}

// NewListener parses the value of a flag, host:port. An empty or invalid value means no listener.
func NewListener(flag, value string) ListenerOut {
	_, text, _ := net.SplitHostPort(value)
	port, _ := strconv.ParseUint(text, 10, 16)
	return ListenerOut{Listener: Listener{Port: uint16(port), Flag: flag}}
}
