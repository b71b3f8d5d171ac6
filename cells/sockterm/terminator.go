package sockterm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/socketlb"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

const (
	// share is the least part of the time that passes leave to others: they rest so many times as long as they took.
	share    = 20
	minRetry = 100 * time.Millisecond
	maxRetry = time.Minute
)

// late passes follow the one that comes at once: until the datapath has what the table says, sockets connect to backends that
// are gone.
var late = []time.Duration{200 * time.Millisecond, 2 * time.Second}

// terminator looks at all sockets whenever a backend has gone.
type terminator struct {
	params
	// gone are backends of UDP that went since the agent began: nothing tells whether a UDP socket was connected by programs
	// or by its process, so only who is connected to one of these is meant. It stays until no pod has its address any more and
	// a pass has looked at the sockets after that.
	gone map[loadbalancer.Address]struct{}
}

type params struct {
	cell.In

	Config    Config
	Options   socketlb.Options
	Kernel    kernel
	DB        *statedb.DB
	Table     statedb.RWTable[Closed]
	Backends  statedb.Table[*backends.Backend]
	Endpoints statedb.Table[*endpoints.Endpoint]
	IPCache   statedb.Table[*ipcache.Entry]
}

func register(jobs job.Group, p params) {
	if p.Options.Enabled {
		t := &terminator{params: p, gone: make(map[loadbalancer.Address]struct{})}
		heartbeat.AddRetried(jobs, "close-sockets", t.run, minRetry, maxRetry)
	}
}

// run begins with a pass: backends may have gone while no agent ran.
func (t *terminator) run(ctx context.Context, health cell.Health) error {
	health.OK("Waiting for services")
	txn := t.DB.WriteTxn(t.Backends)
	changes, err := t.Backends.Changes(txn)
	txn.Commit()
	if err != nil {
		return err
	}
	_, known := t.Backends.Initialized(t.DB.ReadTxn())
	heartbeat.Idle(ctx)
	select {
	case <-ctx.Done():
		return nil
	case <-known:
	}
	due := []time.Duration{0}
	for {
		heartbeat.Busy(ctx)
		snapshot := t.DB.ReadTxn()
		rows, changed := changes.Next(snapshot)
		if t.note(rows) {
			due = append([]time.Duration{0}, late...)
		}
		doomed, freed := t.doomed(snapshot)
		if len(doomed) > 0 && len(due) == 0 {
			due = []time.Duration{0}
		}
		var timer <-chan time.Time
		if len(due) > 0 {
			timer = time.After(due[0])
		}
		heartbeat.Idle(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			continue
		case <-freed:
			continue
		case <-timer:
		}
		heartbeat.Busy(ctx)
		due = due[1:]
		begin := time.Now()
		if err := t.pass(health, doomed); err != nil {
			return err
		}
		if len(due) == 0 {
			for a := range doomed {
				delete(t.gone, a)
			}
		}
		if heartbeat.Sleep(ctx, share*time.Since(begin)) != nil {
			return nil
		}
	}
}

// note remembers which backends have gone, and tells whether one has.
func (t *terminator) note(rows iter.Seq2[statedb.Change[*backends.Backend], statedb.Revision]) (gone bool) {
	for change := range rows {
		b := change.Object
		switch {
		case !change.Deleted:
			delete(t.gone, b.Address)
		case b.Protocol == loadbalancer.UDP:
			t.gone[b.Address] = struct{}{}
		}
		gone = gone || change.Deleted
	}
	return gone
}

// doomed are backends of UDP that nobody can be connected to on purpose: no pod has the address. What it returns is closed when there may
// be more; nil when nothing waits.
func (t *terminator) doomed(txn statedb.ReadTxn) (doomed map[loadbalancer.Address]struct{}, freed <-chan struct{}) {
	doomed = make(map[loadbalancer.Address]struct{})
	for a := range t.gone {
		prefix := netip.PrefixFrom(a.Addr, a.Addr.BitLen())
		entry, _, found := t.IPCache.Get(txn, ipcache.ByPrefix(prefix))
		if found && (entry.Owner == ipcache.OwnerEndpoints || entry.Owner == ipcache.OwnerCiliumEndpoints) {
			if freed == nil {
				_, freed = t.IPCache.AllWatch(txn)
			}
			continue
		}
		doomed[a] = struct{}{}
	}
	return doomed, freed
}

// pass looks at all sockets.
func (t *terminator) pass(health cell.Health, doomed map[loadbalancer.Address]struct{}) error {
	txn := t.DB.ReadTxn()
	closed := map[loadbalancer.Protocol]int{}
	gone := func(a loadbalancer.Address) bool {
		if _, is := doomed[a]; a.Protocol == loadbalancer.UDP && !is {
			return false
		}
		_, _, found := t.Backends.Get(txn, backends.ByAddress(a))
		return !found
	}
	err := t.namespace("", 0, gone, closed)
	places := 1
	if t.Config.Pods {
		for ep := range t.Endpoints.All(txn) {
			if ep.NetnsPath == "" || ep.NetnsInode == 0 {
				continue
			}
			places++
			if e := t.namespace(ep.NetnsPath, ep.NetnsInode, gone, closed); !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}
	t.publish(closed)
	if err != nil {
		return fmt.Errorf("close sockets of backends that are gone: %w", err)
	}
	health.OK(fmt.Sprintf("%d network namespaces looked through", places))
	return nil
}

func (t *terminator) namespace(path string, inode uint64, gone func(loadbalancer.Address) bool, closed map[loadbalancer.Protocol]int) error {
	ns, err := t.Kernel.Open(path, inode)
	if err != nil {
		return err
	}
	defer ns.End()
	for _, p := range []loadbalancer.Protocol{loadbalancer.TCP, loadbalancer.UDP} {
		n, err := ns.Close(p, gone)
		closed[p] += n
		if err != nil {
			return err
		}
	}
	return nil
}

// publish counts what was closed.
func (t *terminator) publish(closed map[loadbalancer.Protocol]int) {
	txn := t.DB.WriteTxn(t.Table)
	defer txn.Commit()
	for p, n := range closed {
		row, _, had := t.Table.Get(txn, protocolIndex.Query(p))
		if n == 0 && had {
			continue
		}
		row.Protocol = p
		row.Sockets += uint64(n)
		_, _, _ = t.Table.Insert(txn, row)
	}
}
