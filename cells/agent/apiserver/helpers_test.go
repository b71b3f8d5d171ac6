package apiserver

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func read(t *testing.T, r *http.Response) string {
	t.Helper()
	data, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func dial(t *testing.T, socket string) net.Conn {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// validRequest reports whether httptest can create the request; it panics for others.
func validRequest(method, path string) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	r := httptest.NewRequest(method, path, nil)
	return strings.HasPrefix(path, "/") && !strings.Contains(r.URL.Path, "changes") // a stream never ends by itself
}
