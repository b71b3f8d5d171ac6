package agentlock

import (
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// address is an abstract socket: each network namespace has its own, and the kernel removes it with its process.
const address = "@waggle-agent"

// Announce tells the network namespace that an agent runs here, until it is closed. A second agent in a namespace is not
// told apart from the first; then, as on any other error, nothing is announced.
func Announce() io.Closer {
	l, err := net.Listen("unix", address)
	if err != nil {
		return io.NopCloser(nil)
	}
	return l
}

// Announced tells whether an agent runs in this network namespace, and as which process; 0 when that is not visible from here.
func Announced() (pid int, running bool) {
	conn, err := net.DialTimeout("unix", address, time.Second)
	if err != nil {
		return 0, !errors.Is(err, unix.ECONNREFUSED) // nobody listens; whoever does and has no room for us runs
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
