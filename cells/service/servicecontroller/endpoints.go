package servicecontroller

import (
	"cmp"
	"slices"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// endpoint is a backend of one port of one service.
type endpoint struct {
	loadbalancer.Address
	state           backends.State
	traits          traits
	node, zone, pod string
	mentions        uint32 // number of entries in slices
}

// traits relate an endpoint to this node.
type traits uint8

const (
	local        traits = 1 << iota // on this node according to its slice; the row of the backend uses the addresses of the node instead
	hasNodeHints                    // it names nodes that should use it
	forThisNode                     // this node is among them
	hasZoneHints                    // it names zones that should use it
	forThisZone                     // the zone of this node is among them
)

// rank orders states: a higher rank is better.
func rank(s backends.State) int {
	switch s {
	case backends.Active:
		return 2
	case backends.Terminating:
		return 1
	case backends.NotReady:
	}
	return 0
}

// better orders endpoints by address, and endpoints with one address by state, the best first.
func better(a, b endpoint) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(rank(b.state), rank(a.state)))
}

func byAddress(e endpoint, a loadbalancer.Address) int { return e.Address.Compare(a) }

// best sorts endpoints and keeps the best of each address, with the mentions of all.
func best(list []endpoint) []endpoint {
	if !slices.IsSortedFunc(list, better) {
		slices.SortStableFunc(list, better)
	}
	kept := list[:0]
	for _, e := range list {
		if last := len(kept) - 1; last >= 0 && kept[last].Address == e.Address {
			kept[last].mentions += e.mentions
			continue
		}
		kept = append(kept, e)
	}
	return kept
}

// group is the endpoints behind one port of a service in one family.
type group struct {
	port      string // name of the service's port
	protocol  loadbalancer.Protocol
	is4       bool
	endpoints []endpoint // all, each address once, sorted; none when the model follows a [roster]
	removed   []endpoint // of slices that were removed since the roster was made; sorted, an address may occur more than once
	added     []endpoint // of slices that were added since then; likewise
	members   []member   // by id; known after the phase nameBackends

	chosen         bool     // cluster and local are valid
	cluster, local []uint32 // ids of the members that take new connections under the policies Cluster and Local, ascending
}

// member is an endpoint, with the id of its backend.
type member struct {
	who      string // of an endpoint on this node: its pod, or its address without a pod; else empty
	id       uint32
	mentions uint32
	rank     uint8
	traits   traits
}

func newMember(e *endpoint, id uint32) member {
	m := member{id: id, mentions: e.mentions, rank: uint8(rank(e.state)), traits: e.traits}
	if e.traits&local != 0 {
		m.who = cmp.Or(e.pod, e.Addr.String())
	}
	return m
}

func byID(a, b member) int { return cmp.Compare(a.id, b.id) }

const (
	rankActive      = 2
	rankTerminating = 1
)

// choose selects the members that take new connections: the active ones, or the terminating ones when none is active. Hints narrow the selection of the
// policy Cluster.
func (g *group) choose() {
	if g.chosen {
		return
	}
	g.chosen = true
	if g.cluster = pick(g.members, rankActive, hint(g.members)); g.cluster == nil {
		g.cluster = pick(g.members, rankTerminating, 0)
	}
	if g.local = pick(g.members, rankActive, local); g.local == nil {
		g.local = pick(g.members, rankTerminating, local)
	}
}

// pick returns the ids of the members with a rank and all of some traits, or nil.
func pick(members []member, rank uint8, traits traits) (ids []uint32) {
	wanted := func(m *member) bool { return m.rank == rank && m.traits&traits == traits }
	count := 0
	for i := range members {
		if wanted(&members[i]) {
			count++
		}
	}
	if count == 0 {
		return nil
	}
	ids = make([]uint32, 0, count)
	for i := range members {
		if wanted(&members[i]) {
			ids = append(ids, members[i].id)
		}
	}
	return ids
}

// hint returns the trait that active members must have because of hints, or 0. Hints for nodes have priority over hints for zones. Either kind counts if all
// active members have some and one of them is for this node.
func hint(members []member) traits {
	every, some := ^traits(0), traits(0)
	for i := range members {
		if m := &members[i]; m.rank == rankActive {
			every, some = every&m.traits, some|m.traits
		}
	}
	switch {
	case every&hasNodeHints != 0 && some&forThisNode != 0:
		return forThisNode
	case every&hasZoneHints != 0 && some&forThisZone != 0:
		return forThisZone
	}
	return 0
}

// traitsOf returns the traits of an endpoint of a slice. An endpoint that names no node is on this node when it has an address of the node.
func (w *world) traitsOf(e *k8s.SliceEndpoint) (t traits) {
	if e.NodeName == w.agent.NodeName || e.NodeName == "" && w.isOwn(e.Addrs[0]) {
		t |= local
	}
	if !w.topology {
		return t
	}
	if len(e.ForNodes) > 0 {
		t |= hasNodeHints
	}
	if slices.Contains(e.ForNodes, w.agent.NodeName) {
		t |= forThisNode
	}
	if len(e.ForZones) > 0 {
		t |= hasZoneHints
	}
	if w.zone != "" && slices.Contains(e.ForZones, w.zone) {
		t |= forThisZone
	}
	return t
}

// stateOf returns the state of an endpoint of a slice.
func stateOf(s *k8s.Service, e *k8s.SliceEndpoint) backends.State {
	switch {
	case e.Ready || s.PublishNotReadyAddrs:
		return backends.Active
	case e.Serving && e.Terminating:
		return backends.Terminating
	}
	return backends.NotReady
}

// portName identifies a port of a slice, and the port of a service that it is behind.
type portName struct{ name, protocol string }

// readAll appends the endpoints of slices to a list of each group.
func (w *world) readAll(m *model, all []*k8s.EndpointSlice, list func(*group) *[]endpoint) {
	numbers := map[portName]uint16{}
	for _, slice := range all {
		clear(numbers)
		for i := range slice.Ports {
			o := &slice.Ports[i]
			numbers[portName{o.Name, o.Protocol}] = o.Port
		}
		for _, g := range m.groups {
			if number := numbers[portName{g.port, g.protocol.String()}]; number != 0 {
				l := list(g)
				*l = w.read(*l, m, g, slice, number)
			}
		}
	}
}

// read appends the endpoints of a slice that are behind the port of a group, in their order. number is the port of the slice.
func (w *world) read(list []endpoint, m *model, g *group, slice *k8s.EndpointSlice, number uint16) []endpoint {
	list = slices.Grow(list, len(slice.Endpoints))
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if len(e.Addrs) == 0 || e.Addrs[0].Is4() != g.is4 {
			continue // only the first address counts
		}
		m.read++
		if !usable(e.Addrs[0]) {
			m.problem("backend %s: is unspecified, loopback, link-local or multicast", e.Addrs[0])
			m.unusable = true
			continue
		}
		m.placed = m.placed || e.NodeName == ""
		list = append(list, endpoint{Address: loadbalancer.Address{Addr: e.Addrs[0], Port: number, Protocol: g.protocol}, state: stateOf(m.object, e),
			traits: w.traitsOf(e), node: e.NodeName, zone: e.Zone, pod: e.Pod, mentions: 1})
	}
	return list
}
