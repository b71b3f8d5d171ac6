package nodemaps

import (
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/settings"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// linger is how long this node still takes packets past the tunnel from a node to which it sends through the tunnel now: that one may hear later that both
// receive it.
const linger = 10 * time.Second

// routing decides which nodes are reached by routes although this node has a tunnel, while nodes change their modes one by one. Two nodes use the tunnel once
// both have published that they receive it. An agent of a release that publishes nothing is reached as it was reached last, also by the previous run.
type routing struct {
	all    bool                 // the previous run had no tunnel
	peers  map[uint16]bool      // by id: the node received no tunnel when that was known last; restored from the slots of the previous run
	routed map[uint16]bool      // by id: it is reached by routes
	until  map[uint16]time.Time // by id: the end of its linger
}

func newRouting() routing {
	return routing{peers: map[uint16]bool{}, routed: map[uint16]bool{}, until: map[uint16]time.Time{}}
}

// restore reads what a previous run has left. One with a tunnel has left an address of this node; one without may have left nothing about nodes.
func (r *routing) restore(states map[uint16]state) {
	if r.all = len(states[bpf.NodeThis].addrs) == 0; r.all {
		return
	}
	for id, s := range states {
		r.peers[id] = s.slot.Mode == bpf.NodeDirect && s.slot.Flags&bpf.NodeRouted != 0
	}
}

// forget deletes what is known of an id that another node may get.
func (r routing) forget(id uint16) {
	r.peers[id] = false
	delete(r.routed, id)
	delete(r.until, id)
}

// decide reports whether a node is reached by routes, and whether packets from it are taken past the tunnel. self and peer are what both nodes have published.
// A node without an agent of ours is taken for one with a tunnel, unless objects may be missing because tables are not complete.
func (r routing) decide(id uint16, a settings.Agent, self, peer nodes.Receives, complete bool) (routed, admitted bool) {
	before, known := r.peers[id]
	before = before || r.all && !known
	theirs, ours := before && (peer.Agent || !complete), before && (self.Agent || !complete)
	if peer.Known {
		theirs = !peer.Tunnel(a.TunnelPort, a.UnderlayIPv6)
	}
	if self.Known {
		ours = self.Port == 0
	}
	if self.Known || complete && !self.Agent { // until then ours needs what the previous run has left
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

// watch adds to changed what closes when the next linger ends.
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
