package natmap

// Share is how many flows one endpoint may have in a map with room for so many entries, of which it may fill so many percent.
func Share(entries uint32, percent int) uint32 {
	return max(1, uint32(uint64(entries)/2*uint64(percent)/100))
}

// Rest is how many flows may be there, all together, that are of no endpoint: where they may fill more than an endpoint may, they
// leave as much as that.
func Rest(entries uint32, percent int) uint32 { return Share(entries, max(percent, 100-percent)) }
