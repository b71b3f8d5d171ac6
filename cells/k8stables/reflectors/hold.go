package reflectors

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/cells/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/k8sobjects"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// holdFor is how long a row stays after a list that lacks its object. Until then agents on nodes that live have made their CiliumNodes again, and an operator can act.
const holdFor = 5 * time.Minute

// errHeld is what an operator has to know of rows that are held.
var errHeld = errors.New("nodes that left are removed within 5 minutes, and nothing is to be done; if the API server was restored from a backup, or its lists are incomplete, " +
	"restart kubelet on the nodes that kubectl get nodes does not show, or their pods are no longer reached")

// lacking are the rows that the last list lacked.
type lacking struct{ rows, of int }

// many reports whether that is more than the nodes that leave between two lists.
func (l lacking) many() bool { return 10*l.rows > l.of }

func (l lacking) String() string {
	return fmt.Sprintf("%d of %d objects are kept, which the last list of the API server lacks", l.rows, l.of)
}

// claims returns the pod ranges of a Node or CiliumNode, and its addresses that no other node may have. Nodes behind one NAT share their ExternalIP.
func claims(row k8sobjects.Row) (claims []string) {
	switch n := row.(type) {
	case *k8s.Node:
		claims = slices.Clone(n.PodCIDRs)
		for _, a := range n.Addresses {
			if a.Type == nodes.InternalIP {
				claims = append(claims, a.Address)
			}
		}
	case *cilium.Node:
		claims = slices.Clone(n.PodCIDRs)
		for _, a := range n.Addresses {
			if a.Type == nodes.InternalIP || a.Type == nodes.CiliumInternalIP {
				claims = append(claims, a.IP)
			}
		}
	}
	return claims
}

// hold adds rows to what a table must hold: those that a list lacks although nothing said that their objects were deleted. A node that leaves is deleted by an event, but
// a list may lack nodes that live: an API server that was restored from a backup has only those of that time, and one replica may be behind another. When nodes vanish, so
// do the routes to their pods and what policies know of them; a node that has really left does no harm for some minutes.
//
// A row whose address or range another object of the list has is not held. Neither is that of this node: the agent then makes its CiliumNode again, and so ends what
// other agents hold. The caller holds apply.
func (s *store) hold(txn statedb.ReadTxn, want map[string]k8sobjects.Row) {
	if !s.holds {
		return
	}
	claimed := map[string]struct{}{}
	for _, row := range want {
		for _, claim := range claims(row) {
			claimed[claim] = struct{}{}
		}
	}
	held := map[string]time.Time{}
	for key, row := range tables.Lacking(txn, s.table, want) {
		if key == s.asks.nodeName || isClaimed(row, claimed) {
			continue
		}
		until, already := s.held[key]
		if !already {
			until = time.Now().Add(holdFor)
		}
		held[key], want[key] = until, row
	}
	if s.held, s.all = held, len(want); len(held) > 0 {
		time.AfterFunc(holdFor, s.awake)
	}
}

func isClaimed(row k8sobjects.Row, claimed map[string]struct{}) bool {
	return slices.ContainsFunc(claims(row), func(claim string) bool {
		_, found := claimed[claim]
		return found
	})
}

// release removes rows that are held when their time has come, or when an object of an event has an address or range of theirs. Those of events are no longer held. The
// caller holds apply.
func (s *store) release(txn statedb.WriteTxn, events []event) error {
	if len(s.held) == 0 {
		return nil
	}
	claimed := map[string]struct{}{}
	for _, e := range events {
		delete(s.held, e.key())
		if e.row != nil && !e.deleted {
			for _, claim := range claims(e.row) {
				claimed[claim] = struct{}{}
			}
		}
	}
	for key, until := range s.held {
		row, found := s.table.Get(txn, key)
		if found && time.Now().Before(until) && !isClaimed(row, claimed) {
			continue
		}
		delete(s.held, key)
		if err := s.table.Delete(txn, key); err != nil {
			return err
		}
	}
	return nil
}
