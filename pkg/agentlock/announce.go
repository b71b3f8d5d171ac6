package agentlock

import (
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// address is an abstract socket. Each network namespace has its own abstract sockets, and the kernel removes one with its process.
const address = "@waggle-agent"

// Announce announces an agent in the network namespace until the result is closed. A second agent in a namespace cannot be
// distinguished from the first; then, as after any other error, Announce has no effect.
func Announce() io.Closer {
	l, err := net.Listen("unix", address)
	if err != nil {
		return io.NopCloser(nil)
	}
	return l
}

// Announced reports whether an agent runs in this network namespace, and its process id, which is 0 when the process is not visible
// in this PID namespace.
func Announced() (pid int, running bool) {
	conn, err := net.DialTimeout("unix", address, time.Second)
	if err != nil {
		return 0, !errors.Is(err, unix.ECONNREFUSED) // refused: no process listens; any other error, such as a full backlog, comes from a running agent
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, true
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid, true
}
