package ciliumnode

import (
	"fmt"
	"time"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
)

const (
	// named is the number of times that an agent on another machine must overwrite the object of this agent before that is a conflict. Once is not a conflict: the
	// API server may be restored to a state in which the node ran on another machine or before a reboot, and a replaced machine may keep running for a short time.
	named = 2
	// yieldFor is how long this agent does not write the CiliumNode in a conflict. Then it writes it again, so that the other agent detects the conflict, too.
	yieldFor = time.Minute
	// calm is how long the CiliumNode must stay as this agent wrote it until the conflict ends. Another running agent would overwrite it within that time.
	calm = 3 * yieldFor
)

// conflict detects agents on different machines that have the same node name, and so write the same CiliumNode. Another machine counts only if it writes after
// this one: this agent takes ownership of an object of a previous boot or machine with this name.
type conflict struct {
	held  bool      // this machine was the last writer of the object
	since time.Time // when held became true
	lost  int       // number of times that another machine overwrote the object of this one
	last  time.Time // time of the last overwrite
	rival string    // describes that machine
}

// observe records the last writer of the object. It reports whether this agent must not write it now.
func (c *conflict) observe(m machine, live *ciliumv2.CiliumNode, now time.Time) (yield bool) {
	if m.id == "" {
		return false
	}
	c.settle(now)
	if m.isLastWriter(live) {
		c.hold(now)
		return false
	}
	rival := m.rival(live)
	if rival == "" {
		return false
	}
	if c.held {
		c.held, c.lost, c.last = false, c.lost+1, now
	}
	c.rival = rival // the other machine may write its addresses later
	return c.lost >= named && now.Sub(c.last) < yieldFor
}

// hold records that this machine wrote the object last.
func (c *conflict) hold(now time.Time) {
	if !c.held {
		c.held, c.since = true, now
	}
	c.settle(now)
}

// settle ends the conflict when the object of this machine has stayed unchanged for calm.
func (c *conflict) settle(now time.Time) {
	if c.held && now.Sub(c.since) >= calm {
		c.lost = 0
	}
}

// err returns the error that describes the conflict; nil without one.
func (c *conflict) err(node string) error {
	if c.lost < named {
		return nil
	}
	return fmt.Errorf("node name %s is used by two agents: the other one runs on %s. Both attach pods with addresses of the same range: give one of the machines another "+
		"name (--node-name, K8S_NODE_NAME or kubelet's --hostname-override) and restart its pods", node, c.rival)
}
