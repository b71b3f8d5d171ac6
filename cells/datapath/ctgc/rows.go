package ctgc

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// flow is one flow in the output of commands. The source is the initiator.
type flow struct {
	Protocol    string         `json:"protocol"`
	Source      netip.AddrPort `json:"source"` // ICMP: the port is the identifier
	Destination netip.AddrPort `json:"destination"`
	ICMPType    *uint8         `json:"icmpType,omitempty"` // of the request
	State       ctmap.State    `json:"state"`
	AgeSeconds  int            `json:"ageSeconds"`
	LeftSeconds int            `json:"leftSeconds"` // until it expires, without another packet
	From        end            `json:"from"`
	To          end            `json:"to"`
	Packets     uint64         `json:"packets"` // of both directions
	Bytes       uint64         `json:"bytes"`
	Flags       []string       `json:"flags,omitempty"`
}

// end is one end of a flow, as in the policy lookup.
type end struct {
	Endpoint uint16 `json:"endpoint,omitempty"` // local id; 0 if no endpoint of this node
	Pod      string `json:"pod,omitempty"`
	Identity uint32 `json:"identity"`
	Revision uint32 `json:"revision,omitempty"` // of the endpoint's facts
}

// filter selects flows; zero fields match any flow.
type filter struct {
	endpoint uint16
	pod      string
	addr     netip.Addr
}

func (f filter) empty() bool { return f == filter{} }

func (f filter) matches(row *flow) bool {
	ends := []end{row.From, row.To}
	return (f.endpoint == 0 || slices.ContainsFunc(ends, func(e end) bool { return e.Endpoint == f.endpoint })) &&
		(f.pod == "" || slices.ContainsFunc(ends, func(e end) bool { return e.Pod == f.pod })) &&
		(!f.addr.IsValid() || row.Source.Addr() == f.addr || row.Destination.Addr() == f.addr)
}

// each reads all maps and calls do for each flow that matches the filter.
func (a *access) each(f filter, do func(m ctmap.Map, entry *ctmap.Flow, row flow) error) error {
	now, err := a.kernel.Now()
	if err != nil {
		return err
	}
	txn := a.db.ReadTxn()
	for _, m := range ctmap.Maps() {
		r, _, err := a.kernel.Read(m)
		if err != nil {
			return err
		}
		for last := false; !last; {
			var entries []ctmap.Flow
			if entries, last, err = r.Next(); err != nil {
				return err
			}
			for i := range entries {
				row := a.row(txn, &entries[i], now)
				if !f.matches(&row) {
					continue
				}
				if err := do(m, &entries[i], row); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (a *access) row(txn statedb.ReadTxn, f *ctmap.Flow, now uint32) flow {
	t, e := f.Tuple(), &f.Entry
	row := flow{Protocol: ctmap.Protocol(t.Protocol), Source: t.Initiator, Destination: t.Responder, State: f.StateAt(now),
		AgeSeconds: int(f.Age(now) / time.Second), LeftSeconds: int(f.Left(now) / time.Second),
		From: a.end(txn, e.Initiator, e.InitiatorIdentity, e.InitiatorRevision), To: a.end(txn, e.Responder, e.ResponderIdentity, e.ResponderRevision),
		Packets: bpf.CtPackets(e), Bytes: e.Bytes, Flags: f.Words()}
	if isICMP(t) {
		row.ICMPType = &t.ICMPType
	}
	return row
}

func isICMP(t bpf.CtFlow) bool { return strings.HasPrefix(ctmap.Protocol(t.Protocol), "ICMP") }

func (a *access) end(txn statedb.ReadTxn, id uint16, identity, revision uint32) end {
	e := end{Endpoint: id, Identity: identity}
	if id != 0 {
		e.Revision = revision
		if ep, _, found := a.endpoints.Get(txn, endpoints.ByID(id)); found {
			e.Pod = ep.PodName()
		}
	}
	return e
}

// flows lists the flows that match the filter, in an order that does not depend on the kernel's hash.
func (a *access) flows(f filter) ([]flow, error) {
	rows := []flow{}
	err := a.each(f, func(_ ctmap.Map, _ *ctmap.Flow, row flow) error {
		rows = append(rows, row)
		return nil
	})
	slices.SortFunc(rows, func(a, b flow) int {
		return cmp.Or(a.Source.Compare(b.Source), a.Destination.Compare(b.Destination), cmp.Compare(a.Protocol, b.Protocol))
	})
	return rows, err
}

// talker is the sum of the flows of one endpoint. A flow between two endpoints counts for both.
type talker struct {
	Endpoint    uint16 `json:"endpoint"`
	Pod         string `json:"pod,omitempty"`
	Flows       int    `json:"flows"`
	Established int    `json:"established"` // flows in the maps of established flows
	Counted     uint32 `json:"counted"`     // flows that count against the endpoint's quota, as counted by the programs
	Packets     uint64 `json:"packets"`
	Bytes       uint64 `json:"bytes"`
}

// talkers lists the endpoints with the most flows first.
func (a *access) talkers(f filter) ([]talker, error) {
	counts, err := a.kernel.Counts()
	if err != nil {
		return nil, err
	}
	sums := make(map[uint16]*talker)
	err = a.each(f, func(_ ctmap.Map, entry *ctmap.Flow, row flow) error {
		for i, e := range []end{row.From, row.To} {
			if e.Endpoint == 0 || row.State == ctmap.Expired || i == 1 && e.Endpoint == row.From.Endpoint {
				continue
			}
			sum := sums[e.Endpoint]
			if sum == nil {
				sum = &talker{Endpoint: e.Endpoint, Pod: e.Pod}
				if int(e.Endpoint) < len(counts) {
					sum.Counted = counts[e.Endpoint]
				}
				sums[e.Endpoint] = sum
			}
			sum.Flows++
			if entry.Established {
				sum.Established++
			}
			sum.Packets += row.Packets
			sum.Bytes += row.Bytes
		}
		return nil
	})
	all := []talker{}
	for _, sum := range sums {
		all = append(all, *sum)
	}
	slices.SortFunc(all, func(a, b talker) int {
		return cmp.Or(cmp.Compare(b.Flows, a.Flows), cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Endpoint, b.Endpoint))
	})
	return all, err
}

// flush deletes the flows that match the filter, and requests a pass that corrects the quotas.
func (a *access) flush(f filter) (deleted int, err error) {
	of := make(map[string]uint64)
	err = a.each(f, func(m ctmap.Map, entry *ctmap.Flow, _ flow) error {
		gone, err := a.kernel.Delete(m, &entry.Key, func(*bpf.CtEntry) bool { return true })
		if gone {
			deleted++
			of[m.Name]++
		}
		return err
	})
	a.publishFlushed(of)
	a.signals.hurry()
	if err != nil {
		return deleted, fmt.Errorf("flush flows, after %d: %w", deleted, err)
	}
	return deleted, nil
}
