package agentclient

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// respondWith accepts connections, sends the given text and closes the connection.
func respondWith(t *testing.T, response string) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "a.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, response)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return socket
}

func TestExchange_ReadsResponsesOfAnySize(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 100, 3000, 1 << 20} {
		c := agent(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", size)) })
		a, err := c.exchange(t.Context(), request{method: "GET", target: "/"})
		if err != nil || a.status != 200 || string(a.body) != strings.Repeat("x", size) {
			t.Errorf("%d bytes: status %d, %d bytes, error %v", size, a.status, len(a.body), err)
		}
	}
}

func TestExchange_RejectsIncompleteResponse(t *testing.T) {
	t.Parallel()
	for response, want := range map[string]error{ // nil matches any error
		"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nabcd": io.ErrUnexpectedEOF,
		"HTTP/1.0 200 OK\r\nContent-":                      nil,
		"HTTP/1.0 200":                                     io.EOF,
		"SSH-2.0-x\r\n\r\n":                                errNoHTTP,
		"HTTP/1.0 OK\r\n\r\n":                              errNoHTTP,
		"HTTP/1.0 100 Continue\r\n\r\n":                    errNoHTTP,
	} {
		_, err := New(respondWith(t, response)).exchange(t.Context(), request{method: "GET", target: "/"})
		if err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%q: got %v, want %v", response, err, want)
		}
	}
}

// A response that exceeds the limit is not reported as an incomplete one, with or without a length.
func TestReadResponse_TooLarge(t *testing.T) {
	t.Parallel()
	for _, head := range []string{"HTTP/1.0 200 OK\r\n\r\n", "HTTP/1.0 200 OK\r\nContent-Length: 20\r\n\r\n"} {
		response := head + strings.Repeat("x", 20)
		if a, err := readResponse(strings.NewReader(response), int64(len(response))); err != nil || len(a.body) != 20 {
			t.Errorf("%q of the largest size: %q, %v", response, a.body, err)
		}
		if _, err := readResponse(strings.NewReader(response), int64(len(response)-1)); !errors.Is(err, errTooLarge) || Interrupted(err) {
			t.Errorf("%q: got %v, want %v", response, err, errTooLarge)
		}
	}
	if want := fmt.Sprintf("larger than %d MiB", maxResponse>>20); !strings.Contains(errTooLarge.Error(), want) {
		t.Errorf("%q does not contain %q", errTooLarge, want)
	}
}

// FuzzReadResponse passes responses that no agent sends.
func FuzzReadResponse(f *testing.F) {
	f.Add([]byte("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"))
	f.Add([]byte("HTTP/1.1 404 \r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := readResponse(bytes.NewReader(data), maxResponse)
		if err == nil && (a.status < 200 || !bytes.HasSuffix(data, a.body)) {
			t.Fatalf("status %d, body %q", a.status, a.body)
		}
	})
}
