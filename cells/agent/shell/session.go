package shell

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cilium/hive/script"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/shellwire"
)

const (
	// writeTimeout is the timeout of a write to a client. A session whose client does not read for so long is closed.
	writeTimeout = 20 * time.Second
	// hangupInterval is the interval of checks whether a client that has closed its sending side has also closed the connection.
	hangupInterval = 250 * time.Millisecond
)

// session runs the commands of one connection one after the other until the client disconnects or the agent stops.
func (s *server) session(ctx context.Context, conn net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()

	state, err := script.NewState(ctx, "/", nil)
	if err != nil {
		s.Log.Error("A shell cannot be opened", "error", err)
		conn.Close()
		return
	}
	out := &output{conn: conn, cancel: cancel}
	defer conn.Close()
	defer func() { _ = state.CloseAndWait(out) }()
	lines := make(chan string)
	background.Go(func() { read(ctx, conn, lines, cancel) })
	for line := range lines {
		switch strings.TrimSpace(line) {
		case "exit", "quit", "stop":
			return
		}
		s.run(state, line, out)
	}
}

// run runs one command and writes an end marker after its output.
func (s *server) run(state *script.State, line string, out *output) {
	defer func() {
		if cause := recover(); cause != nil {
			s.Log.Error("A command of the shell panicked", "command", line, "cause", cause, "stack", string(debug.Stack()))
			fmt.Fprintf(out, "the command panicked: %v%s\n", cause, shellwire.ErrorMarker)
		}
	}()
	err := s.engine.ExecuteLine(state, line, out)
	if err != nil {
		// The client takes the line with the marker as the error. The position that the engine adds is removed.
		text := strings.TrimPrefix(strings.TrimSpace(err.Error()), "<stdin>:0: ")
		fmt.Fprintf(out, "%s%s\n", strings.ReplaceAll(text, "\n", "; "), shellwire.ErrorMarker)
		return
	}
	fmt.Fprintln(out, shellwire.EndMarker)
}

// read sends lines to the channel until the client closes its sending side. Then it waits until the client closes the connection and calls gone, which ends a
// running command. A client that only closes its sending side still gets its output.
func read(ctx context.Context, conn net.Conn, lines chan<- string, gone func()) {
	scanner := bufio.NewScanner(conn)
	scanner.Buffer(nil, shellwire.MaxLine)
	for scanner.Scan() {
		select {
		case lines <- scanner.Text():
		case <-ctx.Done():
			close(lines)
			return
		}
	}
	close(lines)
	for !hungUp(conn) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(hangupInterval):
		}
	}
	gone()
}

// hungUp reports whether the peer has closed the connection in both directions.
func hungUp(conn net.Conn) bool {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return true
	}
	hup := false
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		if n, err := unix.Poll(fds, 0); err == nil && n > 0 {
			hup = fds[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
		}
	})
	return hup || err != nil
}

// output writes to the client. A failed write or a write timeout ends the running command.
type output struct {
	conn   net.Conn
	cancel func()
}

func (o *output) Write(b []byte) (int, error) {
	_ = o.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	n, err := o.conn.Write(b)
	if err != nil {
		o.cancel()
	}
	return n, err
}
