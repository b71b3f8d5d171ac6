package natmap

// Share returns the quota of one endpoint: its maximum number of flows in a map with this many entries, of which it may fill this percentage.
func Share(entries uint32, percent int) uint32 {
	return max(1, uint32(uint64(entries)/2*uint64(percent)/100))
}

// Rest returns the maximum number of flows without an endpoint, all together: if they may fill more of the map than one endpoint may, they still leave the
// quota of one endpoint.
func Rest(entries uint32, percent int) uint32 { return Share(entries, max(percent, 100-percent)) }

// guaranteed is the number of endpoints that can have their guarantee at the same time, besides the node and the flows without an endpoint.
const guaranteed = 256

// Guarantee returns the guaranteed number of flows of each endpoint, of all flows without an endpoint together, and of the node, in a map with this many
// entries.
func Guarantee(entries uint32) uint32 { return entries / 2 / (4 * guaranteed) }

// Beyond returns the maximum number of flows, of all owners together, beyond their guarantees. A quarter of the map is reserved for guarantees, and a
// sixteenth for entries that are not counted: entries of the node and without an endpoint, and entries whose flow no longer exists.
func Beyond(entries uint32) uint32 { return max(1, uint32(uint64(entries)/2*11/16)) }
