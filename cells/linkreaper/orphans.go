package linkreaper

import (
	"errors"
	"fmt"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// severalOrphans is how many links that were in use, none with an endpoint, mean that it is the endpoints that were lost.
const severalOrphans = 2

var errOrphans = errors.New("the state files of the run before are not where this one looks: start it with the --state-dir of before, or " +
	"delete the pods that are on this node")

// orphans returns the links of pods that an earlier run has attached, if nothing is known of that run: somebody removed its
// state directory or gave this one another. They stay until their pods go, for without them no pod could be saved.
func (c *collector) orphans(txn statedb.ReadTxn, stray map[int]string) map[int]string {
	for ep := range c.endpoints.All(txn) {
		if ep.Restored {
			return nil
		}
	}
	orphans := map[int]string{}
	for index, name := range stray {
		if d, _, found := c.devices.Get(txn, devices.ByIndex(index)); found && d.Up { // the last step of an ADD
			orphans[index] = name
		}
	}
	if len(orphans) < severalOrphans {
		return nil
	}
	return orphans
}

// spareOrphans takes orphans out of stray, and forgets those that are gone. The first look finds them.
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
		return fmt.Errorf("%d pods were attached by an earlier run: %w", len(c.spared), errOrphans)
	}
	return nil
}
