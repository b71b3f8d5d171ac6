package agentclient

import (
	"os"
	"strings"
)

const (
	// DefaultSocket is the default path of the agent's socket.
	DefaultSocket = "/var/run/waggle/waggle.sock"
	// SocketEnv names the environment variable with the path of the socket.
	SocketEnv = "WAGGLE_SOCK"
)

// SocketPath returns the path of the socket: typed if it is not empty, otherwise the value of [SocketEnv], otherwise [DefaultSocket].
// It removes the prefix "unix://".
func SocketPath(typed string) string {
	if typed == "" {
		typed = os.Getenv(SocketEnv)
	}
	if typed == "" {
		return DefaultSocket
	}
	return strings.TrimPrefix(typed, "unix://")
}
