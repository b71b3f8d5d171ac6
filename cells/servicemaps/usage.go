package servicemaps

import (
	"fmt"
	"slices"

	"github.com/waggle-net/waggle/pkg/servicemaps"
	"github.com/waggle-net/waggle/pkg/tables/servicemapusage"
)

// fullIs counts an error that means that a map is full, and adds the flag to raise.
func (c *controller) fullIs(in string, err error, flag string) error {
	if servicemaps.Full(err) {
		c.rejected[in]++
		return fmt.Errorf("%w: it is full, raise %s", err, flag)
	}
	return err
}

// readSizes reads the capacities of the maps.
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

// usage returns the usage of each map. It uses maintained counters, because counting would take longer than most changes.
func (c *controller) usage() []servicemapusage.Usage {
	all := []servicemapusage.Usage{
		{Map: c.maps.Services.Name(), Entries: uint32(len(c.entries))},
		{Map: c.maps.Backends.Name(), Entries: uint32(len(c.backends))},
		{Map: c.maps.Slots.Name(), Entries: c.runs.used},
		{Map: c.maps.Maglev.Name(), Entries: c.tables.count()},
		{Map: c.maps.Members.Name(), Entries: c.members},
		{Map: c.maps.Ranges.Name(), Entries: c.ranges},
	}
	for i := range all {
		all[i].MaxEntries, all[i].Refused = c.sizes[all[i].Map], c.rejected[all[i].Map]
	}
	return all
}

// account writes the rows that differ from the previously written ones.
func (c *controller) account() {
	all := c.usage()
	if slices.Equal(all, c.reported) {
		return
	}
	txn := c.DB.WriteTxn(c.Usage)
	defer txn.Commit()
	for i, u := range all {
		if c.reported == nil || c.reported[i] != u {
			_, _, _ = c.Usage.Insert(txn, u) // fails only if a row does not match the index
		}
	}
	c.reported = all
}
