package nodemaps

import (
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// linger is how long this node still accepts packets past the tunnel from a node to which it now sends through the tunnel: the other node may learn later that
// both receive the tunnel.
const linger = 10 * time.Second

// routing determines which nodes are reached by routes although this node has a tunnel, while nodes change their modes one by one. Two nodes use the tunnel
// once both have published that they receive it. A node whose agent has a release that publishes nothing is reached as in the last known state, also of the
// previous run.
type routing struct {
	all    bool                 // the previous run had no tunnel
	peers  map[uint16]bool      // by id: the node did not receive the tunnel in the last known state; restored from the slots of the previous run
	routed map[uint16]bool      // by id: the node is reached by routes
	until  map[uint16]time.Time // by id: end of the linger
}

func newRouting() routing {
	return routing{peers: map[uint16]bool{}, routed: map[uint16]bool{}, until: map[uint16]time.Time{}}
}

// restore reads the slots of a previous run. A run with a tunnel has left an address of this node; a run without may have left no slots.
func (r *routing) restore(states map[uint16]state) {
	if r.all = len(states[bpf.NodeThis].addrs) == 0; r.all {
		return
	}
	for id, s := range states {
		r.peers[id] = s.slot.Mode == bpf.NodeDirect && s.slot.Flags&bpf.NodeRouted != 0
	}
}

// forget deletes the state of an id that another node may get.
func (r routing) forget(id uint16) {
	r.peers[id] = false
	delete(r.routed, id)
	delete(r.until, id)
}

// decide reports whether a node is reached by routes, and whether packets from it are accepted past the tunnel. self and peer are the published values of both
// nodes. A node without an agent of this project counts as a node with a tunnel, unless objects may be missing because tables are not complete.
func (r routing) decide(id uint16, a agentconfig.Agent, self, peer nodes.Receives, complete bool) (routed, accepted bool) {
	before, known := r.peers[id]
	before = before || r.all && !known
	theirs, ours := before && (peer.Agent || !complete), before && (self.Agent || !complete)
	if peer.Known {
		theirs = !peer.Tunnel(a.TunnelPort, a.UnderlayIPv6)
	}
	if self.Known {
		ours = self.Port == 0
	}
	if self.Known || complete && !self.Agent { // until then ours needs the state of the previous run
		r.peers[id] = theirs
	}
	routed = theirs || ours
	switch {
	case routed:
		delete(r.until, id)
	case r.routed[id]:
		r.until[id] = time.Now().Add(linger)
	}
	r.routed[id] = routed
	return routed, routed || time.Now().Before(r.until[id])
}

// ended calls do for the nodes whose linger has ended.
func (r routing) ended(do func(id uint16)) {
	for id, until := range r.until {
		if !time.Now().Before(until) {
			delete(r.until, id)
			do(id)
		}
	}
}

// watch adds to changed a channel that closes when the next linger ends.
func (r routing) watch(changed *statedb.WatchSet) {
	var next time.Time
	for _, until := range r.until {
		if next.IsZero() || until.Before(next) {
			next = until
		}
	}
	if !next.IsZero() {
		over := make(chan struct{})
		time.AfterFunc(time.Until(next), func() { close(over) })
		changed.Add(over)
	}
}
