package agentcall

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"strings"
	"syscall"

	"github.com/waggle-net/waggle/api/v1/models"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrUnreachable: nobody answers on the socket; the request did not reach an agent.
	ErrUnreachable = errors.New("the agent cannot be reached")
	// ErrStarting: the agent answers, but cannot attach pods yet; the message says what it waits for.
	ErrStarting = errors.New("the agent is starting")
	// ErrNotFound: the agent knows no such thing.
	ErrNotFound = errors.New("not found")
)

// notFound is the status behind [ErrNotFound].
const notFound = 404

// Error is an answer of the agent that is not a success.
type Error struct {
	Op      string // what was attempted
	Status  int    // HTTP status
	Line    string // the same with its name, "404 Not Found"
	Message string // what the agent said; may be empty
}

// Error implements error.
func (e *Error) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("%s: the agent answered %s", e.Op, e.Line)
	}
	return fmt.Sprintf("%s: %s (status %d)", e.Op, e.Message, e.Status)
}

// Is makes errors.Is(err, ErrNotFound) true for answers with status 404.
func (e *Error) Is(target error) bool {
	return target == ErrNotFound && e.Status == notFound
}

// Status returns the HTTP status inside err, or 0 when the agent gave none.
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

// Refused makes the error of an answer that is not a success.
func Refused(op string, status int, line string, body []byte) *Error {
	return &Error{Op: op, Status: status, Line: line, Message: message(body)}
}

// message reads the body of an error: a bare JSON string, the router's object, or text.
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

// Unanswered explains why a request could not be sent, or got no answer.
func Unanswered(op, socket string, err error) error {
	var outer *url.Error
	if errors.As(err, &outer) {
		err = outer.Err
	}
	var dial *net.OpError
	if !errors.As(err, &dial) || dial.Op != "dial" {
		return fmt.Errorf("%s: the agent at %s gave no answer: %w", op, socket, err)
	}
	return fmt.Errorf("%s: %w at %s: %w: %s", op, ErrUnreachable, socket, cause(err), hint(err))
}

// cause is the innermost error, without the words of package net that repeat the path.
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
		return "check that waggle-agent runs and that --socket-path (or --state-dir) names this place"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the socket is left over: check why waggle-agent ended"
	}
	return "check that waggle-agent runs"
}
