package ciliumnode

import (
	"fmt"
	"time"

	"github.com/waggle-net/waggle/pkg/ciliumv2"
)

const (
	// named is how many times an agent on another machine must replace what this one wrote until that is a conflict. Once is none: the API server may be restored to a
	// state in which the node ran on another machine or before a reboot, and a machine that is replaced under its name may live a little longer.
	named = 2
	// yieldFor is how long this agent leaves the CiliumNode to the other one in a conflict. Then it writes it again, so that the other one notices, too.
	yieldFor = time.Minute
	// calm is how long the CiliumNode must stay as this agent wrote it until the conflict is over. Another agent that lives would have written it by then.
	calm = 3 * yieldFor
)

// conflict is about agents on different machines that have the same node name, and so write the same CiliumNode. The other machine counts only if it writes after this
// one: what a previous boot or machine of this name has left is taken over.
type conflict struct {
	held  bool      // this machine wrote the object last
	since time.Time // when held became true
	lost  int       // how many times another machine wrote it after this one
	last  time.Time // when that was noticed last
	rival string    // describes that machine
}

// observe takes note of which machine wrote the object last. It reports whether this agent must not write it now.
func (c *conflict) observe(m machine, live *ciliumv2.CiliumNode, now time.Time) (yield bool) {
	if m.id == "" {
		return false
	}
	c.settle(now)
	if m.wrote(live) {
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
	c.rival = rival // it may write its addresses later
	return c.lost >= named && now.Sub(c.last) < yieldFor
}

// hold takes note that this machine wrote the object last.
func (c *conflict) hold(now time.Time) {
	if !c.held {
		c.held, c.since = true, now
	}
	c.settle(now)
}

// settle ends the conflict when the object has stayed as this machine wrote it.
func (c *conflict) settle(now time.Time) {
	if c.held && now.Sub(c.since) >= calm {
		c.lost = 0
	}
}

// err names the conflict; nil without one.
func (c *conflict) err(node string) error {
	if c.lost < named {
		return nil
	}
	return fmt.Errorf("node name %s is used by two agents: the other one runs on %s. Both attach pods with addresses of the same range: give one of the machines another "+
		"name (--node-name, K8S_NODE_NAME or kubelet's --hostname-override) and restart its pods", node, c.rival)
}
