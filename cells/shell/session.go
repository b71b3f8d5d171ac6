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

	"github.com/waggle-net/waggle/pkg/shell"
)

const (
	// writeTimeout ends a session whose client takes no output.
	writeTimeout = 20 * time.Second
	// hangupInterval is how often a client that has sent everything is looked for.
	hangupInterval = 250 * time.Millisecond
)

// session runs the commands of one connection, one after the other, until the client leaves or the agent stops.
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

// run runs one command and ends its output with a marker.
func (s *server) run(state *script.State, line string, out *output) {
	defer func() {
		if cause := recover(); cause != nil {
			s.Log.Error("A command of the shell panicked", "command", line, "cause", cause, "stack", string(debug.Stack()))
			fmt.Fprintf(out, "the command panicked: %v%s\n", cause, shell.ErrorMarker)
		}
	}()
	err := s.engine.ExecuteLine(state, line, out)
	if err != nil {
		// The client takes the line with the marker for the error. Where the engine thinks the line stood is of no use.
		text := strings.TrimPrefix(strings.TrimSpace(err.Error()), "<stdin>:0: ")
		fmt.Fprintf(out, "%s%s\n", strings.ReplaceAll(text, "\n", "; "), shell.ErrorMarker)
		return
	}
	fmt.Fprintln(out, shell.EndMarker)
}

// read hands over lines until the client closes its side. Then it waits until the client is gone altogether, so that a
// command without end is ended; a client that only closes its sending side still gets its output.
func read(ctx context.Context, conn net.Conn, lines chan<- string, gone func()) {
	scanner := bufio.NewScanner(conn)
	scanner.Buffer(nil, shell.MaxLine)
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

// hungUp tells whether the other end is closed in both directions.
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

// output writes to the client. A client that leaves or takes nothing ends the command that runs.
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
