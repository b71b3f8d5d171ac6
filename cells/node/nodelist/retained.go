package nodelist

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

const (
	retainedFile = "removed.json"
	// retention is the time for which a node keeps the ranges of its row after its Node or CiliumNode was deleted. The containers of the node outlive the object:
	// Kubernetes deletes the Pods of a missing Node about a minute later, Pods may take several minutes to terminate, and a Node that was deleted by mistake is
	// missing until its kubelet is restarted.
	retention = 10 * time.Minute
	// maxRetained limits the nodes with retained claims.
	maxRetained = maxTrustedNodes
	// maxRetainedAddresses limits the addresses of each of these nodes, and maxNoted its ranges.
	maxRetainedAddresses = 16
	// maxStored limits the bytes of the claims in the file, because [statefile.Store] reads at most 1,048,576 bytes. Most nodes use less than 600 bytes.
	maxStored = 1_000_000
)

// retained are the claims that a node had when its Node or its CiliumNode was deleted. Its ranges become former ranges of the node until their deadlines, and
// without any object the node also keeps its addresses, so that routes and the tunnel lead to its pods. Claims of other nodes have precedence, and end the
// retention of what they get.
type retained struct {
	Row   *nodes.Node                `json:"row"`   // with accepted claims only
	Until map[netip.Prefix]time.Time `json:"until"` // deadlines of the ranges of the row
}

// each calls do for the ranges and for the full-length prefixes of the addresses. It has no effect on nil.
func (r *retained) each(do func(netip.Prefix)) {
	if r == nil {
		return
	}
	for _, p := range r.Row.CIDRs {
		do(p)
	}
	for _, a := range r.Row.Addresses {
		do(clusternodes.Whole(a.Addr))
	}
}

// retain retains the claims in the row of a node. A range that the node has only because it is retained keeps its deadline.
func (s *trustedRanges) retain(row *nodes.Node) {
	before, known := s.retained[row.Name]
	switch {
	case len(row.CIDRs) == 0:
		return
	case !known && len(s.retained) >= maxRetained:
		if !s.retainedFull {
			s.log.Warn("Cannot keep the ranges of all removed nodes: too many nodes were removed; their pods may get the identity world", "limit", maxRetained, "node", row.Name)
		}
		s.retainedFull = true
		return
	case !known:
		before = &retained{}
	}
	ranges := row.CIDRs[:min(len(row.CIDRs), maxNoted)]
	r := &retained{Until: map[netip.Prefix]time.Time{}, Row: &nodes.Node{Name: row.Name, UID: row.UID, Source: nodes.Removed, CIDRs: ranges,
		Addresses: row.Addresses[:min(len(row.Addresses), maxRetainedAddresses)], Receives: row.Receives, EncryptionKey: row.EncryptionKey}}
	for i, p := range ranges {
		until, already := before.Until[p]
		if former := i >= len(row.CIDRs)-row.Former; !former || !already {
			until = time.Now().Add(retention)
		}
		r.Until[p] = until
	}
	s.retained[row.Name], s.dirty = r, true
}

// storeRetained writes the file of retained claims: those of the first nodes by name, up to maxStored bytes.
func (s *trustedRanges) storeRetained() error {
	size, documents := 0, map[string]json.RawMessage{}
	for _, name := range slices.Sorted(maps.Keys(s.retained)) {
		document, err := json.Marshal(s.retained[name])
		if err != nil {
			return fmt.Errorf("encode the claims of node %s: %w", name, err)
		}
		if size += len(name) + len(document); size > maxStored {
			break
		}
		documents[name] = document
	}
	if err := s.store.Write(retainedFile, documents); err != nil {
		return fmt.Errorf("store the claims of removed nodes: %w", err)
	}
	return nil
}

// keep ends the retention of all ranges of a node for which wanted returns false. It reports whether a range is left.
func (s *trustedRanges) keep(name string, wanted func(netip.Prefix) bool) (left bool) {
	r := s.retained[name]
	if r == nil {
		return false
	}
	unwanted := func(p netip.Prefix) bool { return !wanted(p) }
	if slices.ContainsFunc(r.Row.CIDRs, unwanted) {
		row := *r.Row
		row.CIDRs, s.dirty = slices.DeleteFunc(slices.Clone(row.CIDRs), unwanted), true
		r.Row = &row
		maps.DeleteFunc(r.Until, func(p netip.Prefix, _ time.Time) bool { return unwanted(p) })
	}
	if len(r.Row.CIDRs) == 0 {
		delete(s.retained, name)
	}
	return len(r.Row.CIDRs) > 0
}

// expire ends the retention of ranges whose deadline has passed, and returns the names of their nodes.
func (s *trustedRanges) expire() (changed []string) {
	now := time.Now()
	expired := func(until time.Time) bool { return !now.Before(until) }
	for _, name := range slices.Collect(maps.Keys(s.retained)) {
		r := s.retained[name]
		if slices.ContainsFunc(slices.Collect(maps.Values(r.Until)), expired) {
			changed = append(changed, name)
			s.keep(name, func(p netip.Prefix) bool { return !expired(r.Until[p]) })
		}
	}
	return changed
}

// next returns the time until the next deadline; 0 for none.
func (s *trustedRanges) next() (next time.Duration) {
	for _, r := range s.retained {
		for _, until := range r.Until {
			if rest := max(time.Until(until), 1); next == 0 || rest < next {
				next = rest
			}
		}
	}
	return next
}

// confirm ends the retention of claims that the computed row of a node does not contain, because another node has got them.
func (s *trustedRanges) confirm(row *nodes.Node) {
	if !s.keep(row.Name, func(p netip.Prefix) bool { return slices.Contains(row.CIDRs, p) }) || row.Source != nodes.Removed {
		return
	}
	if r := s.retained[row.Name]; len(row.Addresses) < len(r.Row.Addresses) {
		now := *r.Row
		now.Addresses, r.Row, s.dirty = row.Addresses, &now, true
	}
}

// restore checks the retained claims of the file. No deadline is later than after a deletion now, because the clock may have changed. A later change of the clock
// has no effect on the deadlines.
func (s *trustedRanges) restore() {
	now := time.Now()
	for name, r := range s.retained {
		if r == nil || r.Row == nil || r.Row.Name != name {
			delete(s.retained, name)
			continue
		}
		r.Row.Source = nodes.Removed
		until := map[netip.Prefix]time.Time{} // only ranges of the row, and each of them
		for _, p := range r.Row.CIDRs {
			until[p] = now.Add(min(r.Until[p].Sub(now), retention))
		}
		r.Until = until
	}
}

// retainedRanges claims the retained ranges of a node.
func (c *claims) retainedRanges(n *candidate) {
	if n.retained == nil || n.row.Source == nodes.Local {
		return
	}
	present := len(n.row.CIDRs)
	for _, p := range n.retained.Row.CIDRs {
		untrusted := c.nodesDecide && n.decided(p) && !c.had.has(n.row.Name, p)
		if !untrusted && !slices.Contains(n.row.CIDRs, p) && !c.crowded(n.row.Name, p) && c.prefix(n.row.Name, p) == nil {
			n.row.CIDRs = append(n.row.CIDRs, p)
		}
	}
	n.row.Former += len(n.row.CIDRs) - present
}

// retainedAddresses claims the retained addresses that the missing object of a node listed: addresses in pod ranges without a CiliumNode, and all addresses
// without any object.
func (c *claims) retainedAddresses(n *candidate) {
	if n.retained == nil || n.cilium != nil || n.row.Source == nodes.Local || len(n.row.CIDRs) == 0 {
		return
	}
	for _, a := range n.retained.Row.Addresses {
		ofPods := a.Type == nodes.CiliumInternalIP || a.Type == nodes.HealthIP
		_, inRange := c.ranges.Lookup(a.Addr)
		if usable := ofPods && inRange || !ofPods && n.node == nil; usable && !slices.Contains(n.row.Addresses, a) && c.address(n.row.Name, a.Addr) == nil {
			n.row.Addresses = append(n.row.Addresses, a)
		}
	}
}
