package servicemaps

import (
	"fmt"

	"github.com/waggle-net/waggle/pkg/servicemaps"
	"github.com/waggle-net/waggle/pkg/tables/servicemapusage"
)

// fullIs counts an error that means that a map is full, and adds the remedy.
func (c *controller) fullIs(in string, err error, flag string) error {
	if servicemaps.Full(err) {
		c.refused[in]++
		return fmt.Errorf("%w: it is full, raise %s", err, flag)
	}
	return err
}

// readSizes is for maps of which nothing else knows how many entries they take.
func (f *inForce) readSizes() (err error) {
	f.sizes = map[string]uint32{}
	for _, m := range []interface {
		Name() string
		Size() (uint32, error)
	}{f.maps.Services, f.maps.Backends, f.maps.Slots, f.maps.Maglev, f.maps.Members, f.maps.Ranges} {
		if f.sizes[m.Name()], err = m.Size(); err != nil {
			return err
		}
	}
	return nil
}

// usage says how full each map is.
func (c *controller) usage() []servicemapusage.Usage {
	members, ranges := 0, 0
	for _, b := range c.belong {
		members += len(b.members)
		ranges += len(b.ranges)
	}
	all := []servicemapusage.Usage{
		{Map: c.maps.Services.Name(), Entries: uint32(len(c.entries))},
		{Map: c.maps.Backends.Name(), Entries: uint32(len(c.backends))},
		{Map: c.maps.Slots.Name(), Entries: c.runs.count()},
		{Map: c.maps.Maglev.Name(), Entries: c.tables.count()},
		{Map: c.maps.Members.Name(), Entries: uint32(members)},
		{Map: c.maps.Ranges.Name(), Entries: uint32(ranges)},
	}
	for i := range all {
		all[i].MaxEntries, all[i].Refused = c.sizes[all[i].Map], c.refused[all[i].Map]
	}
	return all
}

// account writes the rows that differ.
func (c *controller) account() {
	txn := c.DB.WriteTxn(c.Usage)
	defer txn.Abort()
	changed := false
	for _, u := range c.usage() {
		if have, _, found := c.Usage.Get(txn, servicemapusage.ByMap(u.Map)); !found || have != u {
			_, _, _ = c.Usage.Insert(txn, u) // fails only when a row is not what the index expects
			changed = true
		}
	}
	if changed {
		txn.Commit()
	}
}
