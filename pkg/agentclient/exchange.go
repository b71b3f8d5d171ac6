package agentclient

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

// maxResponse limits the size of one response in bytes; 4095 endpoints with full logs stay well below it.
const maxResponse = 64 << 20

// dialTimeout limits the time of a connect. The kernel connects unix sockets, or fails, without delay.
const dialTimeout = 2 * time.Second

var (
	errNoHTTP   = errors.New("the answer is not HTTP")
	errTooLarge = errors.New("the answer is larger than 64 MiB: ask for one object, or print the table without -o by waggle db show, which has no limit")
)

// request is one request. target and header must contain no line breaks: they are constants or escaped.
type request struct {
	method string
	target string // path with query, escaped
	header string // further header lines, each with its line end
	body   any    // sent as JSON unless nil
}

// bytes returns the request as it is sent.
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

// httpResponse is a complete response.
type httpResponse struct {
	status int
	line   string // status with its name, "404 Not Found"
	body   []byte
}

// dial connects to a socket. It returns the errors of package net.
type dial func(ctx context.Context, socket string) (net.Conn, error)

func dialUnix(ctx context.Context, socket string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	return dialer.DialContext(ctx, "unix", socket)
}

// exchange sends one request and reads the response. The end of ctx aborts the exchange.
func (c *Client) exchange(ctx context.Context, r request) (httpResponse, error) {
	message, err := r.bytes()
	if err != nil {
		return httpResponse{}, err
	}
	conn, err := c.dial(ctx, c.socket)
	if err != nil {
		return httpResponse{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })() // wakes a blocked read or write
	if _, err = conn.Write(message); err == nil {
		var a httpResponse
		if a, err = readResponse(conn, maxResponse); err == nil {
			return a, nil
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return httpResponse{}, err
}

// readResponse reads until the end of the connection, limit bytes at most.
func readResponse(from io.Reader, limit int64) (a httpResponse, err error) {
	limited := &io.LimitedReader{R: from, N: limit + 1}
	reader := bufio.NewReader(limited)
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
	if limited.N <= 0 {
		return a, errTooLarge
	}
	// An agent that exits may close the connection early. Responses without a length are JSON, so the decoder detects truncation.
	if length := header.Get("Content-Length"); length != "" && length != strconv.Itoa(len(a.body)) {
		return a, fmt.Errorf("the answer has %d bytes of %.20s: %w", len(a.body), length, io.ErrUnexpectedEOF)
	}
	return a, nil
}
