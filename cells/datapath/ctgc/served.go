package ctgc

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/backendcheck"
	"github.com/waggle-net/waggle/pkg/changefeed"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/frontends"
)

// served finds frontends by the ids in entries of the kernel. The tables have no such index, because for each of many frontends it would cost several times as
// much as this map.
type served struct {
	tables    backendcheck.Tables
	remaining backendcheck.Remaining
	replies   expectedReplies

	mu        sync.Mutex // guards the fields below
	changes   *changefeed.Feed[*frontends.Frontend]
	addresses map[uint32]loadbalancer.Address // of frontends by id; the frontend may be removed, or have another id
	closed    bool                            // the agent stops; services are unknown from now on
}

// close ends the subscription. [served.now] returns nil afterwards.
func (s *served) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes.Close()
	s.closed = true
}

// snapshot is the state of services at one moment. Entries often name the same services and backends, so results are cached.
type snapshot struct {
	*served
	txn      statedb.ReadTxn
	view     *backendcheck.View
	verdicts map[named]verdict
	exist    map[netip.Addr]bool // of addresses without a backend
}

// named is the part of an entry that names a service and a backend.
type named struct {
	service, backend uint32
	protocol         loadbalancer.Protocol
}

// now returns nil until all frontends and backends are known.
func (s *served) now(db *statedb.DB) (*snapshot, error) {
	txn := db.ReadTxn()
	frontendsKnown, _ := s.tables.Frontends.Initialized(txn)
	backendsKnown, _ := s.tables.Backends.Initialized(txn)
	if !frontendsKnown || !backendsKnown {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil
	}
	if s.changes == nil {
		write := db.WriteTxn(s.tables.Frontends)
		feed, err := changefeed.Follow(write, s.tables.Frontends)
		write.Commit()
		if err != nil {
			return nil, err
		}
		s.changes, s.addresses = feed, make(map[uint32]loadbalancer.Address)
		txn = db.ReadTxn()
	}
	for _, change := range s.changes.UpTo(txn, statedb.NewWatchSet()) {
		f := change.Object
		switch {
		case !change.Deleted:
			s.addresses[f.ID] = f.Address
		case s.addresses[f.ID] == f.Address:
			delete(s.addresses, f.ID)
		}
	}
	return &snapshot{served: s, txn: txn, view: s.tables.At(txn), verdicts: make(map[named]verdict), exist: make(map[netip.Addr]bool)}, nil
}

// frontend returns the frontend with this id.
func (s *snapshot) frontend(id uint32) (*frontends.Frontend, bool) {
	s.mu.Lock()
	address, found := s.addresses[id]
	s.mu.Unlock()
	if !found {
		return nil, false
	}
	f, _, found := s.tables.Frontends.Get(s.txn, frontends.ByAddress(address))
	return f, found && f.ID == id
}

// verdict is the result for all flows that name the same service and backend. Such flows must have the addresses frontend and backend: a flow with other
// addresses belongs to an object that had the id before the agent was killed. The zero address of a frontend matches any; a backend without a row has the zero
// address, which matches none.
type verdict struct {
	lost              bool // for datagrams only
	frontend, backend netip.AddrPort
	ranged            *frontends.Frontend // its source ranges apply to external clients; nil if the frontend is removed
}

// gone reports whether the flow has lost its backend, or source ranges exclude its external client. A connection stays while its backend belongs to any
// service, or its pod or node exists, as for sockets that programs connected. Datagram flows stay only while the port of their service has the backend.
func (s *snapshot) gone(f *natmap.Flow) bool {
	if f.Backend == 0 {
		return false
	}
	from, to := f.Key.Tuple(), f.Becomes()
	asked, target, client, place := from.Destination, to.Destination, from.Source, from.Place
	if f.Reply() {
		asked, target, client, place = to.Source, from.Source, to.Destination, f.Reverse.Tuple().Place
	}
	n := named{f.Service, f.Backend, loadbalancer.Protocol(from.Protocol)}
	j, known := s.verdicts[n]
	if !known {
		j = s.evaluate(n)
		s.verdicts[n] = j
	}
	if j.ranged != nil && place == bpf.NatFromOutside && !j.ranged.Admits(client.Addr()) {
		return true
	}
	if n.protocol != loadbalancer.UDP {
		return j.backend != target && !s.remains(target.Addr())
	}
	return j.lost || j.backend != target || j.frontend.IsValid() && j.frontend != asked
}

// remains reports whether an address without a backend still exists. The end of its pod or node causes a sweep.
func (s *snapshot) remains(addr netip.Addr) bool {
	exists, known := s.exist[addr]
	if !known {
		if exists = s.tables.Exists(s.txn, addr); exists {
			s.remaining.Add(addr)
		}
		s.exist[addr] = exists
	}
	return exists
}

func (s *snapshot) evaluate(n named) verdict {
	var j verdict
	b, _, served := s.tables.Backends.Get(s.txn, backends.ByID(n.backend))
	if served {
		j.backend = netip.AddrPortFrom(b.Addr, b.Port)
	}
	f, found := s.frontend(n.service)
	if found {
		j.ranged, j.frontend = f, netip.AddrPortFrom(f.Addr, f.Port)
	}
	j.lost = n.protocol == loadbalancer.UDP && !(served && found && s.view.Datagrams(f, b))
	return j
}

// replyTimeout is the maximum time between the deletion of an unserved flow and a reply that still reaches its client. It equals the default timeout of
// resolvers (resolv.conf(5)): a backend that terminates, such as a DNS server that waits for another server, may need that long.
const replyTimeout = 5 * time.Second

// expectedReplies are the reply entries of deleted flows that replies may still use.
type expectedReplies struct {
	mu    sync.Mutex // passes and sweeps run concurrently
	ended map[natmap.Key]time.Time
}

// expect records that a flow was deleted.
func (a *expectedReplies) expect(entry natmap.Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended == nil {
		a.ended = make(map[natmap.Key]time.Time)
	}
	a.ended[entry] = time.Now()
}

// expected reports whether a reply may still arrive.
func (a *expectedReplies) expected(entry natmap.Key) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, known := a.ended[entry]
	return known && time.Since(at) < replyTimeout
}

// forget removes entries that are older than replyTimeout, and reports whether others remain.
func (a *expectedReplies) forget() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.ended, func(_ natmap.Key, at time.Time) bool { return time.Since(at) >= replyTimeout })
	return len(a.ended) > 0
}
