package healthz

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// timeout bounds the reading of a probe and the writing of its answer.
const timeout = 10 * time.Second

// loopbacks are the listening addresses: kubelet probes from the node's network namespace.
var loopbacks = [...]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}

type params struct {
	cell.In

	Lifecycle cell.Lifecycle
	Jobs      job.Group
	Log       *slog.Logger
	Port      port
	Handler   handler
}

func register(p params) {
	if p.Port == 0 {
		return
	}
	p.Lifecycle.Append(cell.Hook{OnStart: p.start})
}

// start listens on both families. It skips a family whose address the node does not have.
func (p params) start(cell.HookContext) error {
	listeners, err := listen(uint16(p.Port))
	if err != nil {
		return err
	}
	if len(listeners) == 0 {
		p.Log.Warn("Health probes are not served: neither 127.0.0.1 nor ::1 exists; set the loopback device up")
	}
	for _, l := range listeners {
		watchdog.Add(p.Jobs, "serve-"+family(l), func(ctx context.Context, health cell.Health) error {
			health.OK("listening on " + l.Addr().String())
			watchdog.Idle(ctx) // each request has its own goroutine
			return p.serve(ctx, l)
		})
	}
	return nil
}

// serve serves probes until ctx ends. It does not wait for running probes.
func (p params) serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{Handler: p.Handler, ReadTimeout: timeout, WriteTimeout: timeout, IdleTimeout: timeout,
		ErrorLog: slog.NewLogLogger(p.Log.Handler(), slog.LevelDebug)}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func listen(port uint16) ([]net.Listener, error) {
	var listeners []net.Listener
	var errs []error
	for _, addr := range loopbacks {
		at := netip.AddrPortFrom(addr, port)
		l, err := net.Listen("tcp", at.String())
		switch {
		case err == nil:
			listeners = append(listeners, l)
		case errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EAFNOSUPPORT):
		default:
			errs = append(errs, fmt.Errorf("--agent-health-port: listen on %s: %w: choose another port, or 0 for none", at, err))
		}
	}
	if len(errs) > 0 {
		for _, l := range listeners {
			l.Close()
		}
	}
	return listeners, errors.Join(errs...)
}

func family(l net.Listener) string {
	if at, err := netip.ParseAddrPort(l.Addr().String()); err == nil && at.Addr().Is6() {
		return "ipv6"
	}
	return "ipv4"
}
