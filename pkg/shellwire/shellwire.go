// Package shellwire implements the protocol of the agent's shell, and its client. A client sends one command per line; the agent responds with lines of output,
// followed by a marker. Hive's shell uses the same protocol.
package shellwire

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

const (
	// SocketName is the name of the socket in the state directory.
	SocketName = "shell.sock"
	// EndMarker ends the output of a command.
	EndMarker = "<<end>>"
	// ErrorMarker ends the output of a command that failed; the text before it in the same line is the error.
	ErrorMarker = "<<error>>"
	// MaxLine limits the length of a command in bytes.
	MaxLine = 64 << 10
)

// HivePrinter prints the modules of the running agent for the command "hive".
type HivePrinter func(io.Writer) error

// ErrUnreachable: no process accepts connections on the socket.
var ErrUnreachable = errors.New("the agent's shell cannot be reached")

// ErrNoAnswer: the agent accepted the connection, and did not complete the output of a command.
var ErrNoAnswer = errors.New("the agent's shell did not answer")

// CommandError is the error of a failed command.
type CommandError struct{ Command, Message string }

// Error implements error.
func (e *CommandError) Error() string { return "the agent's shell: " + e.Message }

// Conn is a connection to the shell.
type Conn struct {
	conn *limited
	in   *bufio.Reader
}

// limited is a connection with a time limit for each read and write.
type limited struct {
	net.Conn
	idle time.Duration // 0 means no limit
}

func (l *limited) Read(b []byte) (int, error) {
	l.limit()
	return l.Conn.Read(b)
}

func (l *limited) Write(b []byte) (int, error) {
	l.limit()
	return l.Conn.Write(b)
}

func (l *limited) limit() {
	deadline := time.Time{}
	if l.idle > 0 {
		deadline = time.Now().Add(l.idle)
	}
	_ = l.SetDeadline(deadline)
}

// Dial connects to the shell at a socket.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("%w: %w: run as root, and check that waggle-agent runs and that its --shell-socket-path is this path",
			ErrUnreachable, err)
	}
	return newConn(conn), nil
}

func newConn(conn net.Conn) *Conn {
	l := &limited{Conn: conn}
	return &Conn{conn: l, in: bufio.NewReader(l)}
}

// Close closes the connection and aborts the running command.
func (c *Conn) Close() error { return c.conn.Close() }

// Run sends a command and passes each line of output to line. The end of ctx aborts it and closes the connection. If the agent sends nothing for the
// duration idle, the error is [ErrNoAnswer]; 0 means no limit. After an error other than [*CommandError] the connection cannot be used.
func (c *Conn) Run(ctx context.Context, command string, idle time.Duration, line func(string)) error {
	if strings.ContainsAny(command, "\r\n") {
		return fmt.Errorf("a command is one line: %q", command)
	}
	defer context.AfterFunc(ctx, func() { c.conn.Close() })()
	c.conn.idle = idle
	if _, err := fmt.Fprintln(c.conn, command); err != nil {
		return c.ended(ctx, err)
	}
	for {
		text, err := c.in.ReadString('\n')
		if err != nil {
			return c.ended(ctx, err)
		}
		text = strings.TrimSuffix(text, "\n")
		// If the output does not end with a newline, its last line contains the marker.
		if rest, failed := strings.CutSuffix(text, ErrorMarker); failed {
			return &CommandError{Command: command, Message: rest}
		}
		rest, ended := strings.CutSuffix(text, EndMarker)
		if rest != "" || !ended {
			output(rest, line)
		}
		if ended {
			return nil
		}
	}
}

// output removes the headings that the script engine prints above the output of commands.
func output(text string, line func(string)) {
	if text != "[stdout]" && text != "[stderr]" {
		line(text)
	}
}

func (c *Conn) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w at %s for %v: its /livez names the part that hangs", ErrNoAnswer, c.conn.RemoteAddr(), c.conn.idle)
	}
	return fmt.Errorf("%w at %s: the agent ended the shell: %w", ErrNoAnswer, c.conn.RemoteAddr(), err)
}

// Run connects to the shell, runs one command as [Conn.Run] does and closes the connection.
func Run(ctx context.Context, socket, command string, idle time.Duration, line func(string)) error {
	c, err := Dial(ctx, socket)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Run(ctx, command, idle, line)
}

// Quote formats arguments as one command line for the script engine: single quotes around each argument that needs them.
func Quote(args []string) string {
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = arg
		if arg == "" || strings.ContainsAny(arg, " \t#$'\"&[]!?*") {
			quoted[i] = "'" + strings.ReplaceAll(arg, "'", "''") + "'"
		}
	}
	return strings.Join(quoted, " ")
}
