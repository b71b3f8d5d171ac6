package agentclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/pipenet"
)

// inMemory is a node whose agents start and stop, with a client of the current agent.
type inMemory struct {
	*Client
	listener atomic.Pointer[pipenet.Listener]
}

func newInMemory() *inMemory {
	n := &inMemory{Client: New("/run/a.sock")}
	n.dial = func(ctx context.Context, _ string) (net.Conn, error) {
		if l := n.listener.Load(); l != nil {
			return l.Dial(ctx)
		}
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.ENOENT)}
	}
	return n
}

// serve starts an agent that reports the given state.
func (n *inMemory) serve(t *testing.T, state func() models.AgentStateState) (stop func()) {
	l := pipenet.Listen(n.socket)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"status":{"deviceMTU":1500,"agent":{"state":%q,"waiting-for":["a Node"]}}}`, state())
	})}
	n.listener.Store(l)
	go func() { _ = server.Serve(l) }()
	stop = func() {
		n.listener.Store(nil)
		_ = server.Shutdown(context.Background()) // completes pending requests
	}
	t.Cleanup(stop)
	return stop
}

// silent starts an agent that accepts connections and sends nothing.
func (n *inMemory) silent(t *testing.T) {
	l := pipenet.Listen(n.socket)
	n.listener.Store(l)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				for _, err := c.Read(make([]byte, 4096)); err == nil; _, err = c.Read(make([]byte, 4096)) {
				}
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
}

// killedDuringRequest starts an agent that ends when it has read a request.
func (n *inMemory) killedDuringRequest(t *testing.T) {
	l := pipenet.Listen(n.socket)
	n.listener.Store(l)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Read(make([]byte, 4096))
		n.listener.Store(nil)
		_ = c.Close()
	}()
	t.Cleanup(func() { _ = l.Close() })
}

func always(state models.AgentStateState) func() models.AgentStateState {
	return func() models.AgentStateState { return state }
}

// took returns how long f takes.
func took(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

// WaitConfig waits for the specified time, whatever the agent does.
func TestWaitConfig_RespectsTimeout(t *testing.T) {
	t.Parallel()
	timeouts := Timeouts{Absent: 5 * time.Second, Starting: 20 * time.Second}
	for name, c := range map[string]struct {
		agent    func(*testing.T, *inMemory)
		timeouts Timeouts
		takes    time.Duration
		want     error
	}{
		"absent":                    {func(*testing.T, *inMemory) {}, timeouts, 5 * time.Second, ErrUnreachable},
		"one attempt":               {func(*testing.T, *inMemory) {}, Timeouts{}, 0, ErrUnreachable},
		"starting":                  {func(t *testing.T, n *inMemory) { n.serve(t, always(models.AgentStateStateStarting)) }, timeouts, 20 * time.Second, ErrStarting},
		"ready":                     {func(t *testing.T, n *inMemory) { n.serve(t, always(models.AgentStateStateReady)) }, timeouts, 0, nil},
		"silent":                    {func(t *testing.T, n *inMemory) { n.silent(t) }, timeouts, 20 * time.Second, context.DeadlineExceeded},
		"silent, again":             {func(t *testing.T, n *inMemory) { n.silent(t) }, Timeouts{}, time.Second, context.DeadlineExceeded},
		"killed during the request": {func(t *testing.T, n *inMemory) { n.killedDuringRequest(t) }, timeouts, 5 * time.Second, ErrUnreachable},
		"killed during the request, then ready": {func(t *testing.T, n *inMemory) {
			n.killedDuringRequest(t)
			time.AfterFunc(3975*time.Millisecond, func() { n.serve(t, always(models.AgentStateStateReady)) })
		}, timeouts, 4 * time.Second, nil},
		"killed during the only request": {func(t *testing.T, n *inMemory) { n.killedDuringRequest(t) }, Timeouts{}, 0, io.EOF},
		"absent, then ready": {func(t *testing.T, n *inMemory) {
			time.AfterFunc(3975*time.Millisecond, func() { n.serve(t, always(models.AgentStateStateReady)) })
		}, timeouts, 4 * time.Second, nil},
		"starting, ready": {func(t *testing.T, n *inMemory) {
			begun := time.Now()
			n.serve(t, func() models.AgentStateState {
				if time.Since(begun) < 19*time.Second-pollInterval/2 {
					return models.AgentStateStateStarting
				}
				return models.AgentStateStateReady
			})
		}, timeouts, 19 * time.Second, nil},
		// The absence timeout of an agent that was starting and then stopped begins at its last response.
		"starting, then absent": {func(t *testing.T, n *inMemory) {
			stop := n.serve(t, always(models.AgentStateStateStarting))
			time.AfterFunc(9975*time.Millisecond, stop)
		}, timeouts, 9950*time.Millisecond + 5*time.Second, ErrUnreachable},
		"starting, absent, ready": {func(t *testing.T, n *inMemory) {
			stop := n.serve(t, always(models.AgentStateStateStarting))
			time.AfterFunc(9975*time.Millisecond, stop)
			time.AfterFunc(13975*time.Millisecond, func() { n.serve(t, always(models.AgentStateStateReady)) })
		}, timeouts, 14 * time.Second, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newInMemory()
				c.agent(t, n)
				var config *PodConfig
				var err error
				d := took(func() { config, err = n.WaitConfig(t.Context(), c.timeouts) })
				if d < c.takes-pollInterval || d > c.takes || !errors.Is(err, c.want) || err == nil && config.DeviceMTU != 1500 {
					t.Errorf("%+v, %v after %v, want %v after %v", config, err, d, c.want, c.takes)
				}
				if errors.Is(err, ErrStarting) && !strings.Contains(err.Error(), "a Node") {
					t.Errorf("%v does not say what the agent waits for", err)
				}
			})
		})
	}
}

// A call is aborted by its context, and after RequestTimeout if the context has no deadline.
func TestCall_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newInMemory()
		n.silent(t)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		var err error
		if d := took(func() { _, err = n.PodConfig(ctx) }); d != 50*time.Millisecond || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after %v", err, d)
		}
		if d := took(func() { _, err = n.PodConfig(t.Context()) }); d != RequestTimeout || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after %v, want %v", err, d, RequestTimeout)
		}
	})
}
