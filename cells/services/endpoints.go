package services

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/tables/backends"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// endpoint is a backend as one port of one service knows it.
type endpoint struct {
	loadbalancer.Address
	state           backends.State
	local           bool // its service says so, and believes it; the row goes by what the node knows
	node, zone, pod string
	hints           *k8s.SliceEndpoint // nil when it has none
}

// rank orders states: the higher is the better one.
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

// better puts endpoints in the order of their addresses, and of one address the best first.
func better(a, b endpoint) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(rank(b.state), rank(a.state)))
}

func sameAddress(a, b endpoint) bool { return a.Address == b.Address }

// pool is who takes new connections of some frontends.
type pool struct {
	members []loadbalancer.Address // sorted
	ids     []uint32               // of members, ascending; nil before they are looked up
}

// choice is who answers a port of a service in one family.
type choice struct {
	cluster *pool // for a policy Cluster
	local   *pool // for a policy Local
	any     bool  // somebody answers, somewhere
}

// choose finds who takes new connections among endpoints of different addresses: those that are active, or when none is, those that
// are about to end and still answer. Hints narrow the choice when all that are active have some and one of them is meant for here.
func (w *world) choose(list []endpoint) choice {
	wanted := w.hinted(list)
	cluster := pick(list, func(e *endpoint) bool { return e.state == backends.Active && wanted(e) })
	if len(cluster) == 0 {
		cluster = pick(list, func(e *endpoint) bool { return e.state == backends.Terminating })
	}
	local := pick(list, func(e *endpoint) bool { return e.local && e.state == backends.Active })
	if len(local) == 0 {
		local = pick(list, func(e *endpoint) bool { return e.local && e.state == backends.Terminating })
	}
	return choice{&pool{members: cluster}, &pool{members: local}, len(cluster) > 0 || len(local) > 0}
}

func pick(list []endpoint, wanted func(*endpoint) bool) (picked []loadbalancer.Address) {
	for i := range list {
		if wanted(&list[i]) {
			picked = append(picked, list[i].Address)
		}
	}
	return picked
}

// hinted says which active endpoints the hints want here. Those for nodes come before those for zones.
func (w *world) hinted(list []endpoint) func(*endpoint) bool {
	all := func(*endpoint) bool { return true }
	if !w.topology {
		return all
	}
	forNode := func(e *endpoint) bool { return e.hints != nil && slices.Contains(e.hints.ForNodes, w.agent.NodeName) }
	forZone := func(e *endpoint) bool {
		return e.hints != nil && w.zone != "" && slices.Contains(e.hints.ForZones, w.zone)
	}
	for _, h := range []struct {
		has, here func(*endpoint) bool
	}{
		{func(e *endpoint) bool { return e.hints != nil && len(e.hints.ForNodes) > 0 }, forNode},
		{func(e *endpoint) bool { return e.hints != nil && len(e.hints.ForZones) > 0 }, forZone},
	} {
		every, some := true, false
		for i := range list {
			if e := &list[i]; e.state == backends.Active {
				every, some = every && h.has(e), some || h.here(e)
			}
		}
		if every && some {
			return h.here
		}
	}
	return all
}

// stateOf says what an endpoint of a slice takes.
func stateOf(s *k8s.Service, e *k8s.SliceEndpoint) backends.State {
	switch {
	case e.Ready || s.PublishNotReadyAddrs:
		return backends.Active
	case e.Serving && e.Terminating:
		return backends.Terminating
	}
	return backends.NotReady
}

// isLocal tells whether an endpoint is on this node. One that names no node is when it has the node's address.
func (w *world) isLocal(node string, addr netip.Addr) bool {
	return node == w.agent.NodeName || node == "" && w.isOwn(addr)
}
