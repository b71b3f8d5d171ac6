package agentcall

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// maxAnswer bounds what is read of one answer; 4095 endpoints with full logs stay well below.
const maxAnswer = 64 << 20

// dialTimeout bounds what takes no time: the kernel connects unix sockets at once, or says why it does not.
const dialTimeout = 2 * time.Second

var errNoHTTP = errors.New("the answer is not HTTP")

// request is one request. Target and header must be free of line breaks: they are constants, or escaped.
type request struct {
	method string
	target string // path with query, escaped
	header string // further lines, each with its end
	body   any    // sent as JSON unless nil
}

// bytes is what goes over the wire.
func (r request) bytes() ([]byte, error) {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return nil, err
		}
		r.header += "Content-Type: application/json\r\n"
	}
	head := fmt.Sprintf("%s %s HTTP/1.0\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n", r.method, r.target, len(body), r.header)
	return append([]byte(head), body...), nil
}

// answer is a whole answer.
type answer struct {
	status int
	line   string // status and its name, "404 Not Found"
	body   []byte
}

// dial connects to a socket. Its errors are those of package net.
type dial func(ctx context.Context, socket string) (net.Conn, error)

func dialUnix(ctx context.Context, socket string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	return dialer.DialContext(ctx, "unix", socket)
}

// exchange sends one request and reads its answer. The end of the context ends it.
func (c *Client) exchange(ctx context.Context, r request) (answer, error) {
	message, err := r.bytes()
	if err != nil {
		return answer{}, err
	}
	conn, err := c.dial(ctx, c.socket)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })() // wakes whoever reads or writes
	if _, err = conn.Write(message); err == nil {
		var a answer
		if a, err = readAnswer(conn); err == nil {
			return a, nil
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return answer{}, err
}

// readAnswer reads up to the end of the connection.
func readAnswer(from io.Reader) (a answer, err error) {
	reader := bufio.NewReader(io.LimitReader(from, maxAnswer))
	head := textproto.NewReader(reader)
	line, err := head.ReadLine()
	if err != nil {
		return a, err
	}
	var protocol string
	protocol, a.line, _ = strings.Cut(line, " ")
	code, _, _ := strings.Cut(a.line, " ")
	a.status, err = strconv.Atoi(code)
	if err != nil || !strings.HasPrefix(protocol, "HTTP/1.") || a.status < 200 {
		return a, fmt.Errorf("%w: it begins with %.80q", errNoHTTP, line)
	}
	header, err := head.ReadMIMEHeader()
	if err != nil {
		return a, err
	}
	if a.body, err = io.ReadAll(reader); err != nil {
		return a, err
	}
	// An agent that dies may end the connection early. Answers without a length are JSON, where the cut shows.
	if length := header.Get("Content-Length"); length != "" && length != strconv.Itoa(len(a.body)) {
		return a, fmt.Errorf("the answer has %d bytes of %.20s: %w", len(a.body), length, io.ErrUnexpectedEOF)
	}
	return a, nil
}
