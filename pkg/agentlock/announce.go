package agentlock

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// address is an abstract socket. Each network namespace has its own abstract sockets, and the kernel removes one with its process.
const address = "@waggle-agent"

// Announce announces an agent in the network namespace until the result is closed. If an agent of root is already announced, the error is a [*HeldError].
//
// Any process in the namespace can take the name. It must not prevent the start of the agent, so if root does not own the name, or its owner is unknown,
// Announce has no effect, as after any other error.
func Announce() (io.Closer, error) {
	for range 3 { // the owner of the name may end between the two calls
		l, err := net.Listen("unix", address)
		if err == nil {
			a := &announcement{listener: l}
			a.accepting.Go(a.accept)
			return a, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
		owner, err := announced()
		if err == nil && owner.Uid == 0 {
			return nil, &HeldError{address, int(owner.Pid)}
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			break
		}
	}
	return io.NopCloser(nil), nil
}

// announcement is the announcement of this process.
type announcement struct {
	listener  net.Listener
	accepting sync.WaitGroup
}

// Close implements [io.Closer].
func (a *announcement) Close() error {
	err := a.listener.Close()
	a.accepting.Wait()
	return err
}

// accept closes each connection, so that the queue of connections does not become full and the owner of the name stays known.
func (a *announcement) accept() {
	for {
		conn, err := a.listener.Accept()
		if err != nil {
			return
		}
		conn.Close()
	}
}

// Announced reports whether an agent runs in this network namespace, and its process id, which is 0 when the process is not visible
// in this PID namespace.
func Announced() (pid int, running bool) {
	owner, err := announced()
	if err != nil {
		return 0, !errors.Is(err, unix.ECONNREFUSED) // refused: no process listens; any other error, such as a full backlog, comes from a running agent
	}
	return int(owner.Pid), true
}

// announced returns the process that owns the name.
func announced() (owner *unix.Ucred, err error) {
	conn, err := net.DialTimeout("unix", address, time.Second)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	controlErr := raw.Control(func(fd uintptr) { owner, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return owner, errors.Join(controlErr, err)
}
