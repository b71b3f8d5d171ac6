package reflectors

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// holdTime is how long a row stays that the last list lacks. In this time the agents of live nodes create their CiliumNodes again, and an operator can
// act.
const holdTime = 5 * time.Minute

// errRetained names the causes of many held rows and the remedy.
var errRetained = errors.New("nodes that have left the cluster are removed within 5 minutes, without any action; if the API server was restored from a backup, or its lists are incomplete, " +
	"restart kubelet on the nodes that kubectl get nodes does not show, or their pods become unreachable")

// missingRows counts the rows that the last list lacks.
type missingRows struct{ rows, of int }

// many reports whether more than a tenth of the rows is held, which is more than the nodes that usually leave between two lists.
func (l missingRows) many() bool { return 10*l.rows > l.of }

func (l missingRows) String() string {
	return fmt.Sprintf("%d of %d objects are kept although the last list of the API server lacks them", l.rows, l.of)
}

// claims returns the pod ranges and the exclusive addresses of a Node or CiliumNode. An ExternalIP is not exclusive: nodes behind one NAT share it.
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

// retain adds to want the rows of Nodes and CiliumNodes that a list lacks without an event of their deletion. A node that leaves is deleted by an
// event. But a list may lack live nodes: an API server that was restored from a backup lacks the nodes that joined since, and one replica may lag
// behind another. Without the rows, the routes to the pods of these nodes would be removed and policies would treat the pods as hosts outside of the
// cluster, while the row of a node that has left does no harm for some minutes.
//
// hold skips a row whose address or range another object of the list claims, and the row of this node: this agent then creates its CiliumNode again,
// so that other agents no longer hold the row. The caller must hold s.apply.
func (s *store) retain(txn statedb.ReadTxn, want map[string]k8sobjects.Row) {
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
	for key, row := range tables.Missing(txn, s.table, want) {
		if key == s.lw.nodeName || isClaimed(row, claimed) {
			continue
		}
		until, already := s.held[key]
		if !already {
			until = time.Now().Add(holdTime)
		}
		held[key], want[key] = until, row
	}
	if s.held, s.all = held, len(want); len(held) > 0 {
		time.AfterFunc(holdTime, s.awake)
	}
}

func isClaimed(row k8sobjects.Row, claimed map[string]struct{}) bool {
	return slices.ContainsFunc(claims(row), func(claim string) bool {
		_, found := claimed[claim]
		return found
	})
}

// release deletes held rows whose time is over, and held rows whose address or range an object of an event claims. A row whose own object has an
// event is no longer held. The caller must hold s.apply.
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
