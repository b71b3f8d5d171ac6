package natmap

// Share is how many flows one endpoint may have in a map with room for so many entries, of which it may fill so many percent.
func Share(entries uint32, percent int) uint32 {
	return max(1, uint32(uint64(entries)/2*uint64(percent)/100))
}

// Rest is how many flows may be there, all together, that are of no endpoint: where they may fill more than an endpoint may, they
// leave as much as that.
func Rest(entries uint32, percent int) uint32 { return Share(entries, max(percent, 100-percent)) }

// guaranteed is how many endpoints can have their guarantee at the same time, besides the node and the flows of no endpoint.
const guaranteed = 256

// Guarantee returns how many flows each endpoint can always have in a map with room for so many entries, those of none together, and the node.
func Guarantee(entries uint32) uint32 { return entries / 2 / (4 * guaranteed) }

// Beyond returns how many flows all may have together beyond their guarantees. A quarter of the map is left to guarantees, and a sixteenth to entries that
// do not count: those of the node and of no endpoint, and those whose flow is gone.
func Beyond(entries uint32) uint32 { return max(1, uint32(uint64(entries)/2*11/16)) }
