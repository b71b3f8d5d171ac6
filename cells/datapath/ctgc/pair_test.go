package ctgc

import (
	"net/netip"
	"testing"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/backends"
)

// renewing is a kernel in which a packet of the initiator renews an entry of the first direction right before its deletion.
type renewing struct{ fakeNat }

func (r renewing) DeleteNat(key *natmap.Key, dead func(*natmap.Flow) bool) (bool, error) {
	r.mu.Lock()
	if flow := r.nat[*key]; !flow.Reply() {
		flow.Expires = r.now + 100
		r.nat[*key] = flow
	}
	r.mu.Unlock()
	return r.fakeNat.DeleteNat(key, dead)
}

// The entry that translates replies stays while a packet of the initiator may still be translated, also for a flow to a service.
func TestDeletePair_LiveFlow_KeepsReverseEntry(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(s *sharing){
		"masqueraded, IPv4": func(s *sharing) { s.translate(false, 1000, 1) },
		"masqueraded, IPv6": func(s *sharing) { s.translate(true, 1000, 1) },
		"to a service, IPv4": func(s *sharing) {
			s.pair("TCP", "from-pod", "10.1.0.7:1000", "10.96.0.1:80", "10.1.0.7:1000", "10.1.0.21:8080", "to-pod", "endpoint=7", "service=1", "backend=11")
		},
		"to a service, IPv6": func(s *sharing) {
			s.pair("TCP", "from-outside", "[2001:db8::1]:1000", "[2001:db8:113::7]:80", "[2001:db8::1]:1000", "[fd00::7]:8080", "to-outside", "endpoint=7",
				"service=2", "backend=12")
		},
	} {
		for _, renewed := range []bool{true, false} {
			s := newSharing(t)
			s.backend(11, "10.1.0.21:8080")
			s.backend(12, "[fd00::7]:8080")
			put(s)
			s.fake.now += 1 << 20 // all flows have expired
			if renewed {
				s.nat = renewing{fakeNat{s.fake}}
			}
			s.pass()
			if left := len(s.fake.nat); left != map[bool]int{true: 2, false: 0}[renewed] {
				t.Errorf("%s, renewed %v: %d entries are left", name, renewed, left)
			}
		}
	}
}

// pair stores a translated flow in the kernel; see kernel/pair.
func (s *sharing) pair(args ...string) {
	s.Helper()
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	if _, err := s.fake.putPair(args); err != nil {
		s.Fatal(err)
	}
}

// backend adds a TCP backend to the tables.
func (s *sharing) backend(id uint32, addr string) {
	s.Helper()
	table, is := s.served.tables.Backends.(statedb.RWTable[*backends.Backend])
	if !is {
		s.Fatal("the table of backends cannot be written")
	}
	at := netip.MustParseAddrPort(addr)
	txn := s.db.WriteTxn(table)
	defer txn.Commit()
	if _, _, err := table.Insert(txn, &backends.Backend{Address: loadbalancer.Address{Addr: at.Addr(), Port: at.Port(), Protocol: loadbalancer.TCP}, ID: id,
		State: backends.Active}); err != nil {
		s.Fatal(err)
	}
}
