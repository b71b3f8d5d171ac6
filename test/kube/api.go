package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

func base64Text(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// makeClient creates the HTTP client that reaches the API server from the control plane's network namespace.
func (c *Cluster) makeClient() error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.caPEM) {
		return fmt.Errorf("the certificate authority is not a certificate")
	}
	c.api = &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, DialContext: c.Dial, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute,
	}}
	return nil
}

// Dial connects from the control plane's namespace; it suits http.Transport and rest.Config.
func (c *Cluster) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = c.control.do(func() error {
		conn, err = (&net.Dialer{FallbackDelay: -1}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Get returns an object or a page of the API server, as admin.
func (c *Cluster) Get(ctx context.Context, path string) ([]byte, error) {
	return c.Request(ctx, http.MethodGet, path, nil)
}

// GetObject reads an object into out.
func (c *Cluster) GetObject(ctx context.Context, path string, out any) error {
	body, err := c.Get(ctx, path)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, out)
}

// Create posts an object to the path of its collection.
func (c *Cluster) Create(ctx context.Context, path string, object any) error {
	return c.CreateAt(ctx, c.URL, path, object)
}

// CreateAt posts an object to one of several API servers.
func (c *Cluster) CreateAt(ctx context.Context, server, path string, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	_, err = c.requestAt(ctx, server, http.MethodPost, path, body)
	return err
}

// MergePatch changes an object at a path.
func (c *Cluster) MergePatch(ctx context.Context, path, patch string) error {
	_, err := c.Request(ctx, http.MethodPatch, path, []byte(patch))
	return err
}

// Delete deletes the object, or all objects, at a path.
func (c *Cluster) Delete(ctx context.Context, path string) error {
	_, err := c.Request(ctx, http.MethodDelete, path, nil)
	return err
}

// Request sends one request as admin. It costs far less than running kubectl.
func (c *Cluster) Request(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	return c.requestAt(ctx, c.URL, method, path, body)
}

func (c *Cluster) requestAt(ctx context.Context, server, method, path string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, server+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if server != etcdClientURL { // which knows no tokens
		request.Header.Set("Authorization", "Bearer "+AdminToken)
	}
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := c.api.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode/100 != 2 {
		err = &StatusError{response.StatusCode, fmt.Sprintf("%s %s: %s: %.500s", method, path, response.Status, answer)}
	}
	return answer, err
}

// StatusError is the API server's refusal of a request.
type StatusError struct {
	Code int // of HTTP
	text string
}

func (e *StatusError) Error() string { return e.text }

func isNotFound(err error) bool {
	status := (*StatusError)(nil)
	return errors.As(err, &status) && status.Code == http.StatusNotFound
}
