// Package shell is the protocol of the agent's shell, and its client. A client sends one command per line; the agent
// answers with lines of output and ends them with a marker. The form is that of hive's shell.
package shell

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

const (
	// SocketName is the file in the state directory.
	SocketName = "shell.sock"
	// EndMarker ends the output of a command.
	EndMarker = "<<end>>"
	// ErrorMarker ends the output of a command that failed; what stands before it in the line is the error.
	ErrorMarker = "<<error>>"
	// MaxLine bounds a command.
	MaxLine = 64 << 10
)

// HivePrinter prints the modules of the running agent for the command "hive".
type HivePrinter func(io.Writer) error

// ErrUnreachable: nobody answers on the socket.
var ErrUnreachable = errors.New("the agent's shell cannot be reached")

// CommandError is what a command said when it failed.
type CommandError struct{ Command, Message string }

// Error implements error.
func (e *CommandError) Error() string { return "the agent's shell: " + e.Message }

// Conn is an open shell.
type Conn struct {
	conn net.Conn
	in   *bufio.Reader
}

// Dial opens the shell behind a socket.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("%w: %w: run as root, and check that waggle-agent runs and that its --shell-socket-path is this",
			ErrUnreachable, err)
	}
	return &Conn{conn: conn, in: bufio.NewReader(conn)}, nil
}

// Close ends the shell, with the command that it runs.
func (c *Conn) Close() error { return c.conn.Close() }

// Run sends a command and hands each line of output to line. It ends early, and closes the shell, when ctx does.
func (c *Conn) Run(ctx context.Context, command string, line func(string)) error {
	if strings.ContainsAny(command, "\r\n") {
		return fmt.Errorf("a command is one line: %q", command)
	}
	defer context.AfterFunc(ctx, func() { c.conn.Close() })()
	if _, err := fmt.Fprintln(c.conn, command); err != nil {
		return c.ended(ctx, err)
	}
	for {
		text, err := c.in.ReadString('\n')
		if err != nil {
			return c.ended(ctx, err)
		}
		text = strings.TrimSuffix(text, "\n")
		// Output that does not end with a newline has the marker in its last line.
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

// output leaves out the headings that the script engine puts above what commands print.
func output(text string, line func(string)) {
	if text != "[stdout]" && text != "[stderr]" {
		line(text)
	}
}

func (c *Conn) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("the agent ended the shell: %w", err)
}

// Run opens the shell, runs one command and closes it.
func Run(ctx context.Context, socket, command string, line func(string)) error {
	c, err := Dial(ctx, socket)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Run(ctx, command, line)
}

// Quote makes arguments one command line for the script engine: each in single quotes where it needs them.
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
