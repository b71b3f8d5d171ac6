package policycompiler

// Diff holds the changes that turn one [Compiled] into another.
type Diff struct {
	AddedAllows []Entry
	AddedDenies []Entry
	Removed     []Entry // with their previous rules and verdicts
	Changed     []Entry // same key, other verdict: the new entries
	Renamed     []Entry // same key and verdict, another rule: the new entries
}

// Diff returns the entries to write and to remove in order to turn from into c. If from is nil, every entry is added. Groups of entries that both share cost
// little. A different [Compiled.AllowsAll] is not part of the result, because it means another policy id.
func (c *Compiled) Diff(from *Compiled) Diff {
	var d Diff
	var old []*group
	if from != nil {
		old = from.groups
	}
	now := c.groups
	for len(old)+len(now) > 0 {
		switch {
		case len(old) == 0 || len(now) > 0 && now[0].compare(old[0].peer) < 0:
			d.group(&group{}, now[0])
			now = now[1:]
		case len(now) == 0 || now[0].compare(old[0].peer) > 0:
			d.group(old[0], &group{})
			old = old[1:]
		default:
			if old[0] != now[0] {
				d.group(old[0], now[0])
			}
			old, now = old[1:], now[1:]
		}
	}
	return d
}

// group compares the entries of one peer.
func (d *Diff) group(old, now *group) {
	before := make(map[Key]entry, len(old.entries))
	for _, e := range old.entries {
		before[old.key(e)] = e
	}
	for _, e := range now.entries {
		was, had := before[now.key(e)]
		delete(before, now.key(e))
		switch {
		case had && was.deny != e.deny:
			d.Changed = append(d.Changed, now.entry(e))
		case had && was.rule != e.rule:
			d.Renamed = append(d.Renamed, now.entry(e))
		case had:
		case e.deny:
			d.AddedDenies = append(d.AddedDenies, now.entry(e))
		default:
			d.AddedAllows = append(d.AddedAllows, now.entry(e))
		}
	}
	for _, e := range old.entries {
		if _, gone := before[old.key(e)]; gone {
			d.Removed = append(d.Removed, old.entry(e))
		}
	}
}
