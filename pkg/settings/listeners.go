package settings

import (
	"net"
	"strconv"

	"github.com/cilium/hive/cell"
)

// Listener is a TCP port of the node on which a cell of the agent listens.
type Listener struct {
	Port uint16
	Flag string // that names it
}

// ListenerOut is how a cell names its listener. Port 0 is none.
type ListenerOut struct {
	cell.Out

	Listener Listener `group:"listeners"`
}

// Listeners are those of all cells.
type Listeners struct {
	cell.In

	All []Listener `group:"listeners"`
}

// NewListener reads the value of a flag, host:port. One that is empty or cannot be read is none.
func NewListener(flag, value string) ListenerOut {
	_, text, _ := net.SplitHostPort(value)
	port, _ := strconv.ParseUint(text, 10, 16)
	return ListenerOut{Listener: Listener{Port: uint16(port), Flag: flag}}
}
