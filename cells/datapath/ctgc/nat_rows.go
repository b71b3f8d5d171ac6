package ctgc

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/ctmap"
	"github.com/waggle-net/waggle/pkg/datapath/natmap"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// translation is a translated flow in the output of commands. The source is the initiator. The ports of an ICMP flow are its identifier.
type translation struct {
	Protocol    string         `json:"protocol"`
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	// The addresses after the translation.
	NewSource      netip.AddrPort `json:"newSource"`
	NewDestination netip.AddrPort `json:"newDestination"`
	Place          string         `json:"place"`
	State          natmap.State   `json:"state"`
	LeftSeconds    int            `json:"leftSeconds"`          // until both directions have expired, without another packet
	Service        string         `json:"service,omitempty"`    // name
	ServiceID      uint32         `json:"serviceID,omitempty"`  // of the frontend
	BackendID      uint32         `json:"backendID,omitempty"`  //
	Endpoint       uint16         `json:"endpoint,omitempty"`   // the endpoint in whose quota the flow counts; 0 if no endpoint of this node
	Pod            string         `json:"pod,omitempty"`        //
	Flags          []string       `json:"flags,omitempty"`      //
	Incomplete     bool           `json:"incomplete,omitempty"` // the entry of the other direction is missing
	forward        natmap.Flow    // the entry of the first direction
}

// natFilter selects flows; zero fields match any flow.
type natFilter struct {
	filter
	service string
}

func (f natFilter) empty() bool { return f == natFilter{} }

func (f natFilter) matches(t *translation) bool {
	return (f.endpoint == 0 || t.Endpoint == f.endpoint) && (f.pod == "" || t.Pod == f.pod) &&
		(f.service == "" || t.Service == f.service) && (!f.addr.IsValid() || anyAddr(&t.forward, func(a netip.Addr) bool { return a == f.addr }))
}

// translations lists the flows that match the filter, in an order that does not depend on the kernel's hash.
func (a *access) translations(f natFilter) ([]translation, error) {
	now, err := a.kernel.Now()
	if err != nil {
		return nil, err
	}
	services, err := a.served.now(a.db)
	if err != nil {
		return nil, err
	}
	txn := a.db.ReadTxn()
	rows := []translation{}
	for _, m := range natmap.Maps() {
		entries, err := a.natEntries(m)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			reverse, whole := entries[e.Reverse]
			if e.Reply() && whole && !reverse.Reply() {
				continue // listed with the other entry
			}
			row := translationOf(e, reverse, whole, now)
			if ep, _, found := a.endpoints.Get(txn, endpoints.ByID(row.Endpoint)); found && row.Endpoint != 0 {
				row.Pod = ep.PodName()
			}
			row.Service = serviceName(services, e.Service)
			if f.matches(&row) {
				rows = append(rows, row)
			}
		}
	}
	slices.SortFunc(rows, func(a, b translation) int {
		return cmp.Or(a.Source.Compare(b.Source), a.Destination.Compare(b.Destination), cmp.Compare(a.Protocol, b.Protocol),
			cmp.Compare(a.Place, b.Place))
	})
	return rows, nil
}

func serviceName(s *snapshot, id uint32) string {
	if s == nil || id == 0 {
		return ""
	}
	if f, found := s.frontend(id); found {
		return f.Service
	}
	return ""
}

func (a *access) natEntries(m natmap.Map) (map[natmap.Key]natmap.Flow, error) {
	r, _, err := a.nat.ReadNat(m)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	all := make(map[natmap.Key]natmap.Flow)
	for last := false; !last; {
		var flows []natmap.Flow
		if flows, last, err = r.Next(); err != nil {
			return nil, err
		}
		for _, f := range flows {
			all[f.Key] = f
		}
	}
	return all, nil
}

func translationOf(e, reverse natmap.Flow, whole bool, now uint32) translation {
	from, to := e.Key.Tuple(), e.Becomes()
	row := translation{Protocol: ctmap.Protocol(from.Protocol), Source: from.Source, Destination: from.Destination, NewSource: to.Source,
		NewDestination: to.Destination, Place: natmap.Place(from.Place), ServiceID: e.Service, BackendID: e.Backend,
		Endpoint: uint16(e.Endpoint), Flags: e.Words(), Incomplete: !whole, forward: e}
	left := int32(e.Expires - now)
	other := &reverse
	if whole {
		left = max(left, int32(reverse.Expires-now))
	} else {
		other = nil
	}
	row.State = e.StateAt(now, other)
	row.LeftSeconds = int(bpf.CtDuration(uint32(max(left, 0))) / time.Second)
	return row
}

// natTalker is a count of translated flows of one endpoint, or to one target, because ports are used up for each target separately.
type natTalker struct {
	Endpoint uint16 `json:"endpoint,omitempty"` // 0: no endpoint of this node
	Pod      string `json:"pod,omitempty"`
	Node     bool   `json:"node,omitempty"`   // flows that the node itself initiated
	Beyond   bool   `json:"beyond,omitempty"` // flows of all endpoints together beyond their guarantees
	Target   string `json:"target,omitempty"` // "PROTOCOL SOURCE>TARGET" after the translation: the ports of the source are used up
	Flows    int    `json:"flows"`
	// Of an endpoint, of all flows without an endpoint, of the node, or beyond guarantees.
	Counted int32  `json:"counted,omitempty"` // flows that count against the quota, as counted by the programs
	Percent int    `json:"percent,omitempty"` // of the quota, or of the limit beyond guarantees, in the family with the larger part
	Refused uint64 `json:"refused,omitempty"` // number of signals of programs that a further flow was denied
}

// shareOf sets the used part of the quota of an endpoint, of the flows without an endpoint, or of the node. Refused flows of the node count with those without
// an endpoint.
func (a *access) shareOf(t *natTalker, counts natCounts, capacity [2]uint32, rejected map[uint16]uint64) {
	if t.Target != "" {
		return
	}
	share := natmap.Share
	if t.Endpoint == 0 {
		share = natmap.Rest
	}
	var flows bpf.NatCount
	switch {
	case t.Node:
		flows = counts.totals[bpf.NatOfNode]
	case int(t.Endpoint) < len(counts.flows):
		flows = counts.flows[t.Endpoint]
	}
	t.Counted, t.Percent = flows.Ipv4+flows.Ipv6, used(flows, share(capacity[0], a.percent), share(capacity[1], a.percent))
	if !t.Node {
		t.Refused = rejected[t.Endpoint]
	}
}

// natCapacity returns the capacities of the maps, IPv4 first.
func (a *access) natCapacity() (capacity [2]uint32, err error) {
	for i, m := range natmap.Maps() {
		var r natReader
		if r, capacity[i], err = a.nat.ReadNat(m); err != nil {
			return capacity, err
		}
		r.Close()
	}
	return capacity, nil
}

// natTalkers lists the endpoints with the most translated flows first, then the targets with the most used ports.
func (a *access) natTalkers(f natFilter) ([]natTalker, error) {
	rows, err := a.translations(f)
	if err != nil {
		return nil, err
	}
	counts, err := a.natCounts()
	if err != nil {
		return nil, err
	}
	capacity, err := a.natCapacity()
	if err != nil {
		return nil, err
	}
	rejected := a.signals.rejections()
	beyond := counts.totals[bpf.NatBeyond]
	by := map[natTalker]int{}
	for _, row := range rows {
		if row.State == natmap.Expired {
			continue
		}
		by[natTalker{Endpoint: row.Endpoint, Pod: row.Pod, Node: row.forward.Flags&uint32(bpf.NatNode) != 0}]++
		if row.NewSource != row.Source {
			by[natTalker{Target: fmt.Sprintf("%s %s>%s", row.Protocol, row.NewSource.Addr(), row.NewDestination)}]++
		}
	}
	all := []natTalker{}
	if f.empty() && beyond != (bpf.NatCount{}) {
		all = append(all, natTalker{Beyond: true, Flows: int(beyond.Ipv4 + beyond.Ipv6), Counted: beyond.Ipv4 + beyond.Ipv6,
			Percent: used(beyond, natmap.Beyond(capacity[0]), natmap.Beyond(capacity[1]))})
	}
	for t, n := range by {
		t.Flows = n
		a.shareOf(&t, counts, capacity, rejected)
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b natTalker) int {
		return cmp.Or(cmp.Compare(kind(a), kind(b)), cmp.Compare(b.Flows, a.Flows), cmp.Compare(a.Endpoint, b.Endpoint), cmp.Compare(a.Target, b.Target))
	})
	return all, nil
}

// kind orders rows: endpoints, the node, flows beyond guarantees, targets.
func kind(t natTalker) int {
	switch {
	case t.Target != "":
		return 3
	case t.Beyond:
		return 2
	case t.Node:
		return 1
	}
	return 0
}

// flushNat deletes the flows that match the filter.
func (a *access) flushNat(f natFilter) (deleted int, err error) {
	rows, err := a.translations(f)
	if err != nil {
		return 0, err
	}
	of := make(map[string]uint64)
	p := &pass{access: a}
	for i := range rows {
		n, err := p.deletePair(&rows[i].forward, func(*natmap.Flow) bool { return true })
		if err != nil {
			return deleted, fmt.Errorf("flush translated flows, after %d: %w", deleted, err)
		}
		if n > 0 {
			deleted++
		}
		of[natmap.Of(rows[i].forward.Key.IPv6).Name] += n
	}
	a.publishFlushed(of)
	a.signals.hurry()
	return deleted, nil
}
