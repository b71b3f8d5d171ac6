package linkreaper

import (
	"errors"
	"fmt"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// severalOrphans is the number of links in use without an endpoint from which the state files count as lost, if no endpoint was restored.
const severalOrphans = 2

var errOrphans = errors.New("the state files of that run are not in the state directory: start the agent with the previous --state-dir, or " +
	"delete the pods that are on this node")

// orphans returns the links of pods that a previous run attached, if no endpoint was restored: the state directory was removed or replaced. These links stay
// until their pods are deleted, because the pods still use them.
func (c *collector) orphans(txn statedb.ReadTxn, stray map[int]string) map[int]string {
	for ep := range c.endpoints.All(txn) {
		if ep.Restored {
			return nil
		}
	}
	orphans := map[int]string{}
	for index, name := range stray {
		if d, _, found := c.devices.Get(txn, devices.ByIndex(index)); found && d.Up { // an ADD sets the link up in its last step
			orphans[index] = name
		}
	}
	if len(orphans) < severalOrphans {
		return nil
	}
	return orphans
}

// spareOrphans removes orphans from stray, and forgets deleted ones. The first scan determines the orphans.
func (c *collector) spareOrphans(txn statedb.ReadTxn, stray map[int]string) error {
	if !c.looked {
		c.looked, c.spared = true, c.orphans(txn, stray)
	}
	for index, name := range c.spared {
		if stray[index] != name {
			delete(c.spared, index)
			continue
		}
		delete(stray, index)
	}
	if len(c.spared) > 0 {
		return fmt.Errorf("%d pods were attached by the previous run: %w", len(c.spared), errOrphans)
	}
	return nil
}
