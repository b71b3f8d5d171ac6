package agentclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"github.com/waggle-net/waggle/api/v1/models"
)

// Errors for errors.Is.
var (
	// ErrUnreachable: no process accepts connections on the socket; the request did not reach an agent.
	ErrUnreachable = errors.New("the agent cannot be reached")
	// ErrNoAnswer: the agent accepted the connection, and sent no complete answer before the deadline or its end.
	ErrNoAnswer = errors.New("the agent did not answer")
	// ErrStarting: the agent responds, but cannot attach pods yet; the message names the missing conditions.
	ErrStarting = errors.New("the agent is starting")
	// ErrNotFound: the agent does not know the named object.
	ErrNotFound = errors.New("not found")
)

// notFound is the HTTP status of [ErrNotFound].
const notFound = 404

// Error is an unsuccessful response of the agent.
type Error struct {
	Op      string // attempted operation
	Status  int    // HTTP status
	Line    string // status with its name, "404 Not Found"
	Message string // message of the agent; may be empty
}

// Error implements error.
func (e *Error) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("%s: the agent answered %s", e.Op, e.Line)
	}
	return fmt.Sprintf("%s: %s (status %d)", e.Op, e.Message, e.Status)
}

// Is makes errors.Is(err, ErrNotFound) true for responses with status 404.
func (e *Error) Is(target error) bool {
	return target == ErrNotFound && e.Status == notFound
}

// Status returns the HTTP status inside err, or 0 when err holds none.
func Status(err error) int {
	var answer *Error
	if errors.As(err, &answer) {
		return answer.Status
	}
	return 0
}

// Interrupted reports whether the agent accepted the request and ended before it answered. The agent may have executed the request, so the
// caller may repeat only a request that is idempotent.
func Interrupted(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// newError returns the error of an unsuccessful response.
func newError(op string, status int, line string, body []byte) *Error {
	return &Error{Op: op, Status: status, Line: line, Message: message(body)}
}

// message reads the body of an error response: a bare JSON string, the router's object, or text.
func message(body []byte) string {
	var text string
	if json.Unmarshal(body, &text) == nil {
		return text
	}
	var router models.RouterError
	if json.Unmarshal(body, &router) == nil && router.Message != "" {
		return router.Message
	}
	return strings.TrimSpace(string(body))
}

// noResponse returns the error of a request that could not be sent or got no response.
func noResponse(op, socket string, err error) error {
	var dial *net.OpError
	switch {
	case errors.As(err, &dial) && dial.Op == "dial":
		return fmt.Errorf("%s: %w at %s: %w: %s", op, ErrUnreachable, socket, cause(err), hint(err))
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w at %s: %w: its /livez names the part that hangs", op, ErrNoAnswer, socket, err)
	case Interrupted(err):
		return fmt.Errorf("%s: %w at %s: %w", op, ErrNoAnswer, socket, err)
	}
	return fmt.Errorf("%s: the agent at %s: %w", op, socket, err)
}

// cause returns the innermost error, without the words of package net that repeat the path.
func cause(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

func hint(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "run as root or as a member of the group waggle"
	case errors.Is(err, fs.ErrNotExist):
		return "check that waggle-agent runs and that --socket-path (or --state-dir) names this path"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the socket is stale: check why waggle-agent ended"
	}
	return "check that waggle-agent runs"
}
