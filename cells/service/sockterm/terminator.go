package sockterm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/backendcheck"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/podns"
	"github.com/waggle-net/waggle/pkg/socketlboptions"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
	"github.com/waggle-net/waggle/pkg/throttle"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	// startPause is the time from when all services are known to the first pass. Loading the programs that list sockets takes up to 100 ms of CPU time, a part of
	// it for the type information of the kernel: pods wait for the packet programs and for their links meanwhile.
	startPause = 2 * time.Second

	// passRatio bounds the CPU time of the passes: a hundredth of a CPU if backends change all the time. passBurst is the CPU time that passes may use at once, and
	// longestPause bounds the pause after it: until the next pass, a process whose backend was removed gets no replies. Only CPU time counts, because on a busy
	// machine a pass may take seconds.
	passRatio    = 100
	passBurst    = 100 * time.Millisecond
	longestPause = 10 * time.Second
	// leastPause is the minimum pause: where backends change all the time, there are at most five passes in a second.
	leastPause = 200 * time.Millisecond

	minRetry = 100 * time.Millisecond
	maxRetry = time.Minute

	maxFailures = 3 // maximum number of pods in a health message
)

// late has the delays of the passes after the immediate one: until the datapath matches the tables, sockets connect to removed
// backends.
var late = []time.Duration{200 * time.Millisecond, 2 * time.Second}

// terminator checks the connected sockets whenever services or backends have changed.
type terminator struct {
	params

	remaining backendcheck.Remaining
}

type params struct {
	cell.In

	Config    Config
	Options   socketlboptions.Options
	Kernel    kernel
	DB        *statedb.DB
	Table     statedb.RWTable[Closed]
	Serving   backendcheck.Tables
	Endpoints statedb.Table[*endpoints.Endpoint]
}

func register(jobs job.Group, p params) {
	if p.Options.Enabled {
		t := &terminator{params: p}
		watchdog.AddRetried(jobs, "close-sockets", t.run, minRetry, maxRetry)
		watchdog.AddRetried(jobs, "check-remaining-addresses", func(ctx context.Context, health cell.Health) error {
			return t.remaining.Run(ctx, health, p.DB, p.Serving)
		}, minRetry, maxRetry)
	}
}

// run starts with a pass, after startPause: backends may have been removed while no agent ran.
func (t *terminator) run(ctx context.Context, health cell.Health) error {
	health.OK("waiting for services")
	if !loop.Await(ctx, t.DB, loop.Options{}, func(r *loop.Round) bool { return r.Complete(t.Serving.Frontends, t.Serving.Backends) }) {
		return nil
	}
	if watchdog.Sleep(ctx, startPause) != nil {
		return nil
	}
	list, err := t.Kernel.Load()
	if err != nil {
		return fmt.Errorf("close sockets of removed backends: %w", err)
	}
	defer list.Close()
	due := late               // delays of the next passes without a change
	retry := time.Duration(0) // delay of the pass after a failed one; 0 after a success
	pace := throttle.Limit{Ratio: passRatio, Burst: passBurst, Min: leastPause, Max: longestPause, Measure: throttle.CPUTime}
	return loop.Run(ctx, t.DB, loop.Options{}, func(r *loop.Round) error {
		r.Watch(t.Serving.Frontends, t.Serving.Backends)
		r.Changed.Add(t.remaining.Begin())
		r.Txn = nil // a pass has its own snapshot
		if !r.Full {
			due = late
		}
		var err error
		cost := pace.Measure(func() { err = t.pass(list, health) })
		switch {
		case err != nil: // the loop continues, because the failure may concern one namespace or protocol
			health.Degraded("sockets may stay connected to removed backends", fmt.Errorf("close sockets of removed backends: %w", err))
			retry = min(max(2*retry, minRetry), maxRetry)
			r.Within(retry)
		case retry > 0:
			retry, due = 0, late
		}
		if len(due) > 0 {
			r.Within(due[0])
			due = due[1:]
		}
		_ = watchdog.Sleep(ctx, pace.After(cost)) // fails when ctx ends, and the loop ends too
		return nil
	})
}

// gone reports whether a socket must be closed because its backend does not serve it now. A TCP connection is valid while the backend belongs to any service, or
// its pod or node exists. For UDP the frontend that the process requested must have the backend, as for flows that are translated on links.
func (t *terminator) gone(txn statedb.ReadTxn, v *backendcheck.View, s *socket) bool {
	b, _, found := v.Backends.Get(txn, backends.ByAddress(s.Backend))
	if s.Backend.Protocol != loadbalancer.UDP {
		return !found && !t.remains(txn, s.Backend.Addr)
	}
	if !found {
		return true
	}
	f, _, _ := v.Frontends.Get(txn, frontends.ByAddress(s.Service))
	return !v.Datagrams(f, b)
}

// remains reports whether an address without a backend still exists. The end of its pod or node causes a pass.
func (t *terminator) remains(txn statedb.ReadTxn, addr netip.Addr) bool {
	if !t.Serving.Exists(txn, addr) {
		return false
	}
	t.remaining.Add(addr)
	return true
}

// pass closes the sockets of the node whose backends were removed, and the sockets of pods if the agent may enter their namespaces.
func (t *terminator) pass(list list, health cell.Health) error {
	done := tally{closed: map[loadbalancer.Protocol]uint64{loadbalancer.TCP: 0, loadbalancer.UDP: 0}}
	err := t.terminate(list, "", 0, &done)
	if t.Config.Pods {
		err = errors.Join(err, t.terminateInPods(list, &done))
	}
	t.remaining.Check(t.DB.ReadTxn(), t.Serving)
	t.publish(done.closed)
	if err != nil {
		return err
	}
	health.OK(fmt.Sprintf("%d sockets scanned", done.seen))
	return nil
}

// tally counts the sockets of a pass.
type tally struct {
	seen   int
	closed map[loadbalancer.Protocol]uint64
}

// terminateInPods closes sockets inside pods. A failure in one pod does not prevent the termination in other pods, unless the agent lacks a capability, which
// affects all pods.
func (t *terminator) terminateInPods(list list, done *tally) error {
	var errs []error
	more := 0
	for ep := range t.Endpoints.All(t.DB.ReadTxn()) {
		if ep.NetnsPath == "" || ep.NetnsInode == 0 {
			continue
		}
		err := t.terminate(list, ep.NetnsPath, ep.NetnsInode, done)
		switch {
		case err == nil || errors.Is(err, podns.ErrGone): // the sockets were removed with the namespace
		case errors.Is(err, unix.EPERM):
			return errors.Join(append(errs, err)...)
		case len(errs) < maxFailures:
			errs = append(errs, fmt.Errorf("endpoint %d: %w", ep.ID, err))
		default:
			more++
		}
	}
	if more > 0 {
		errs = append(errs, fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// terminate closes the sockets of one network namespace whose backends were removed. It reads the tables after the kernel: a listed socket may have a backend
// that was added during the listing, and only a later snapshot contains that backend.
func (t *terminator) terminate(list list, path string, inode uint64, done *tally) error {
	ns, err := list.Open(path, inode)
	if err != nil {
		return err
	}
	defer ns.Close()
	sockets, err := ns.Connected()
	done.seen += len(sockets)
	errs := []error{err}
	txn := t.DB.ReadTxn()
	view := t.Serving.At(txn)
	for i := range sockets {
		s := &sockets[i]
		if !t.gone(txn, view, s) {
			continue
		}
		was, err := ns.Terminate(s)
		if was {
			done.closed[s.Backend.Protocol]++
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// publish adds the numbers of closed sockets to the table.
func (t *terminator) publish(closed map[loadbalancer.Protocol]uint64) {
	txn := t.DB.WriteTxn(t.Table)
	defer txn.Abort()
	for p, n := range closed {
		row, _, had := t.Table.Get(txn, protocolIndex.Query(p))
		if n == 0 && had {
			continue
		}
		row.Protocol = p
		row.Sockets += n
		_, _, _ = t.Table.Insert(txn, row)
	}
	txn.Commit()
}
