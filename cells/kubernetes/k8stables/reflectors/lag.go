package reflectors

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// report publishes the origin of the rows as health, and whether slices lag.
func (m *merger) report(txn statedb.ReadTxn, health cell.Health) {
	switch m.from {
	case unknown:
		health.OK("waiting for lists; the pods of other nodes may be stale")
	case fromEndpoints:
		if time.Since(m.began) < slicesTimeout {
			health.OK("slices are not complete yet; all CiliumEndpoints are read")
			return
		}
		health.Degraded("slices are not complete; all CiliumEndpoints are read",
			errors.New("check the health of the cluster role, which must run with --enable-cilium-endpoint-slice"))
	case fromSlices:
		if !m.leaving.IsZero() {
			health.OK("slices are no longer complete; until all CiliumEndpoints are listed, slices remove no pods")
			return
		}
		if time.Since(m.compared) >= tick {
			m.compared = time.Now()
			m.seekOwn(txn)
		}
		late := 0
		for _, since := range m.missing {
			if time.Since(since) >= lagLimit {
				late++
			}
		}
		if late > 0 {
			health.Degraded(fmt.Sprintf("slices lag behind: they lack %d pods of this node", late),
				errors.New("other nodes do not know these pods yet: check the health of the cluster role"))
			return
		}
		health.OK(fmt.Sprintf("pods of other nodes are read from %d slices", len(m.slices)-1))
	}
}

// seekOwn compares the pods of this node with the slices and records the missing ones. A node knows only its own pods without delay, so they show the
// lag of the slices.
func (m *merger) seekOwn(txn statedb.ReadTxn) {
	in := map[string]*cilium.Endpoint{}
	for _, slice := range m.slices {
		for _, ep := range slice.Endpoints {
			if ep.Host() == m.node {
				in[ep.Key()] = ep
			}
		}
	}
	missing := map[string]time.Time{}
	for own := range m.set.Stage.Own.All(txn) {
		key := own.Key()
		ep := in[key]
		if own.NumAddrs() == 0 || ep != nil && ep.SameObject(own) && ep.Identity() == own.Identity() {
			continue
		}
		if missing[key] = m.missing[key]; missing[key].IsZero() {
			missing[key] = m.compared
		}
	}
	m.missing = missing
}
