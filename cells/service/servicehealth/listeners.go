package servicehealth

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/tables/services"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// timeout limits reading a request and writing its response. Any host can send requests.
const timeout = 5 * time.Second

// listeners are the sockets of the ports, and the one server behind them. Each connection is closed after its response: a load balancer sends a request every
// few seconds, and a connection that stays open must not answer for a port that was closed.
type listeners struct {
	server *http.Server
	serve  sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	open   map[uint16]net.Listener
	closed bool
}

type listenerParams struct {
	cell.In

	Lifecycle cell.Lifecycle
	Log       *slog.Logger
	DB        *statedb.DB
	Ports     statedb.RWTable[*port]
	Services  statedb.Table[*services.Service]
	Rules     *rules
}

func newListeners(p listenerParams) *listeners {
	l := &listeners{open: map[uint16]net.Listener{}}
	l.server = newServer(responder{p.DB, p.Ports, p.Services, p.Rules}, p.Log)
	p.Lifecycle.Append(cell.Hook{OnStop: func(cell.HookContext) error { l.stop(); return nil }})
	return l
}

func newServer(h http.Handler, log *slog.Logger) *http.Server {
	s := &http.Server{Handler: h, ReadTimeout: timeout, WriteTimeout: timeout, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	s.SetKeepAlivesEnabled(false)
	return s
}

func (l *listeners) stop() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	_ = l.server.Close() // closes the listeners too
	for n := range l.numbers() {
		l.close(n) // listeners that the server does not know yet
	}
	l.serve.Wait()
}

// Update implements reconciler.Operations. The handler reads the tables, so a port only has to be open.
func (l *listeners) Update(ctx context.Context, _ statedb.ReadTxn, _ statedb.Revision, p *port) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.open[p.Number] != nil {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf(":%d", p.Number))
	if err != nil {
		return fmt.Errorf("answer on health check node port %d of Service %s: %w", p.Number, p.Service, err)
	}
	l.open[p.Number] = listener
	l.serve.Go(func() { _ = l.server.Serve(listener) }) // ends when the listener is closed
	return nil
}

// Delete implements reconciler.Operations.
func (l *listeners) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, p *port) error {
	l.close(p.Number)
	return nil
}

func (l *listeners) close(number uint16) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if listener := l.open[number]; listener != nil {
		_ = listener.Close()
		delete(l.open, number)
	}
}

// Prune implements reconciler.Operations. It closes ports without a row.
func (l *listeners) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*port, statedb.Revision]) error {
	left := l.numbers()
	for p := range rows {
		delete(left, p.Number)
	}
	for n := range left {
		l.close(n)
	}
	return nil
}

func (l *listeners) numbers() map[uint16]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[uint16]bool{}
	for n := range l.open {
		all[n] = true
	}
	return all
}

func registerReconciler(params reconciler.Params, table statedb.RWTable[*port], l *listeners) error {
	_, err := watchdog.Register(params, table, (*port).clone, (*port).withStatus, (*port).status, l, nil,
		reconciler.WithName("health-check-ports"),
		reconciler.WithRefreshing(0, nil), // a socket stays open
		reconciler.WithPruning(30*time.Minute),
		reconciler.WithRetry(100*time.Millisecond, time.Minute), // another process may have the port
	)
	return err
}

// errNoPort means that a connection has no local address.
var errNoPort = errors.New("the connection has no local port")

// localPort returns the port that received a request.
func localPort(r *http.Request) (uint16, error) {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return 0, errNoPort
	}
	at, err := netip.ParseAddrPort(addr.String())
	return at.Port(), err
}
