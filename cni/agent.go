package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/waggle-net/waggle/api/v1/models"
)

const (
	// silence bounds how long a listening agent may take for an answer that needs no work.
	silence = 10 * time.Second
	// buildTimeout is how long an endpoint may take to reach the kernel.
	buildTimeout = 90 * time.Second
	// maxAnswer bounds what is read of an answer; thousands of endpoints have some megabytes.
	maxAnswer = 64 << 20
	// maxMessage bounds what is shown of an error of the agent.
	maxMessage = 2048
)

// agent is what the plugin needs of the agent's API.
type agent interface {
	Config(ctx context.Context) (*models.DaemonConfigurationStatus, error)
	Allocate(ctx context.Context, owner string) (*models.IPAMResponse, error)
	Release(ctx context.Context, ip, pool string) error
	CreateEndpoint(ctx context.Context, req *models.EndpointChangeRequest) error
	DeleteEndpoint(ctx context.Context, id string) error
	EndpointHealth(ctx context.Context, id string) (*models.EndpointHealth, error)
	Endpoints(ctx context.Context) ([]models.Endpoint, error)
	Status(ctx context.Context) (*models.StatusResponse, error)
}

// answerError is an answer other than success.
type answerError struct {
	Status  int    // of HTTP
	Message string // of the agent; may be empty
}

func (e *answerError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("the agent answered %d %s", e.Status, http.StatusText(e.Status))
	}
	return e.Message
}

// remedy says what can be done about a refusal.
func (e *answerError) remedy() string {
	switch e.Status {
	case http.StatusForbidden:
		return "permit the call with the agent's --enable-cilium-api-server-access"
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return "the agent is busy: the runtime repeats the call"
	}
	return "see waggle status and waggle endpoint list, and the log of the agent"
}

// isStatus tells whether the agent answered with one of these codes.
func isStatus(err error, codes ...int) bool {
	var answer *answerError
	if errors.As(err, &answer) {
		for _, c := range codes {
			if answer.Status == c {
				return true
			}
		}
	}
	return false
}

// isAnswer tells whether the agent answered at all.
func isAnswer(err error) bool {
	var answer *answerError
	return errors.As(err, &answer)
}

// client speaks to the agent over one connection.
type client struct{ http http.Client }

func newClient(socket string) *client {
	return &client{http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		DisableCompression: true,
	}}}
}

func (c *client) Config(ctx context.Context) (*models.DaemonConfigurationStatus, error) {
	var answer models.DaemonConfiguration
	err := c.call(ctx, silence, http.MethodGet, "/config", nil, nil, &answer)
	return &answer.Status, err
}

func (c *client) Allocate(ctx context.Context, owner string) (*models.IPAMResponse, error) {
	var answer models.IPAMResponse
	path := "/ipam?owner=" + url.QueryEscape(owner)
	err := c.call(ctx, buildTimeout, http.MethodPost, path, http.Header{"expiration": {"true"}}, nil, &answer)
	return &answer, err
}

func (c *client) Release(ctx context.Context, ip, pool string) error {
	return c.call(ctx, silence, http.MethodDelete, "/ipam/"+ip+"?pool="+url.QueryEscape(pool), nil, nil, nil)
}

func (c *client) CreateEndpoint(ctx context.Context, req *models.EndpointChangeRequest) error {
	return c.call(ctx, buildTimeout, http.MethodPut, "/endpoint/cilium-local:0", nil, req, nil)
}

func (c *client) DeleteEndpoint(ctx context.Context, id string) error {
	return c.call(ctx, buildTimeout, http.MethodDelete, "/endpoint/"+id, nil, nil, nil)
}

func (c *client) EndpointHealth(ctx context.Context, id string) (*models.EndpointHealth, error) {
	var answer models.EndpointHealth
	err := c.call(ctx, silence, http.MethodGet, "/endpoint/"+id+"/healthz", nil, nil, &answer)
	return &answer, err
}

func (c *client) Endpoints(ctx context.Context) ([]models.Endpoint, error) {
	var answer []models.Endpoint
	err := c.call(ctx, buildTimeout, http.MethodGet, "/endpoint", nil, nil, &answer)
	return answer, err
}

func (c *client) Status(ctx context.Context) (*models.StatusResponse, error) {
	var answer models.StatusResponse
	err := c.call(ctx, silence, http.MethodGet, "/healthz", nil, nil, &answer)
	return &answer, err
}

// call sends one request. A nil answer is not decoded.
func (c *client) call(ctx context.Context, timeout time.Duration, method, path string, header http.Header, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var reader io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		reader = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost/v1"+path, reader)
	if err != nil {
		return err
	}
	for k, v := range header {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return unwrapURL(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	if resp.StatusCode >= 300 {
		return &answerError{resp.StatusCode, message(data)}
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("decode the agent's answer to %s %s: %w", method, path, err)
	}
	return nil
}

// unwrapURL drops the address that net/http puts before an error: there is only one socket, and others name it.
func unwrapURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// message reads the two forms of errors of the agent: a bare string, and the router's object.
func message(data []byte) string {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		var object models.RouterError
		if err := json.Unmarshal(data, &object); err == nil {
			text = object.Message
		} else {
			text = string(data)
		}
	}
	text = strings.TrimSpace(strings.ToValidUTF8(text, "?"))
	return text[:min(len(text), maxMessage)]
}
