package ipam

import (
	"fmt"
	"math/big"
	"net/netip"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// Usage counts the addresses of one family. All counted addresses except Outside lie inside Range.
type Usage struct {
	Family      string       // "ipv4" or "ipv6"
	Range       netip.Prefix // the chosen pod CIDR
	Usable      *big.Int     // addresses of Range less network and broadcast
	Allocated   int          // allocated and not yet claimed
	Claimed     int          // used by endpoints
	Reserved    int          // used by the node, such as the router
	Quarantined int          // released recently, not yet reusable
	Excluded    int          // never allocated
	Outside     int          // still used, from a previously chosen range
}

// Used returns the number of addresses of pods and the node.
func (u Usage) Used() int { return u.Allocated + u.Claimed + u.Reserved }

// String returns the family's part of the line in status commands.
func (u Usage) String() string {
	name := map[string]string{"ipv4": "IPv4", "ipv6": "IPv6"}[u.Family]
	return fmt.Sprintf("%s: %d/%d allocated from %s", name, u.Used(), u.Usable, u.Range)
}

// Count returns the usage of one family from the table's rows.
func Count(txn statedb.ReadTxn, addresses statedb.Table[ipamaddresses.Address], family string, prefix netip.Prefix) Usage {
	u := NewUsage(family, prefix)
	for row := range addresses.All(txn) {
		u.Add(row.Addr, row.State, 1)
	}
	return u
}

// NewUsage returns a usage without addresses.
func NewUsage(family string, prefix netip.Prefix) Usage {
	return Usage{Family: family, Range: prefix, Usable: usable(prefix)}
}

// Add counts an address n times; n may be negative. It ignores addresses of the other family.
func (u *Usage) Add(addr netip.Addr, state ipamaddresses.State, n int) {
	if addr.Is4() != (u.Family == "ipv4") {
		return
	}
	if !u.Range.Contains(addr) {
		u.Outside += n
		return
	}
	switch state {
	case ipamaddresses.Allocated:
		u.Allocated += n
	case ipamaddresses.Claimed:
		u.Claimed += n
	case ipamaddresses.Reserved:
		u.Reserved += n
	case ipamaddresses.Quarantined:
		u.Quarantined += n
	case ipamaddresses.Excluded:
		u.Excluded += n
	}
}

// StatusLine returns the summary of all families, such as "IPv4: 5/254 allocated from 10.0.0.0/24, IPv6: ...".
func StatusLine(usages []Usage) string {
	parts := make([]string, len(usages))
	for i, u := range usages {
		parts[i] = u.String()
	}
	return strings.Join(parts, ", ")
}

func usable(prefix netip.Prefix) *big.Int {
	size := new(big.Int).Lsh(big.NewInt(1), uint(prefix.Addr().BitLen()-prefix.Bits()))
	if two := big.NewInt(2); size.Cmp(two) > 0 {
		size.Sub(size, two)
	}
	return size
}
