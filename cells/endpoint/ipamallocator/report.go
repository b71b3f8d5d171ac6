package ipamallocator

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/ipamaddresses"
)

// topOwners limits the owners that an error names.
const topOwners = 3

// exhausted returns the error for a full range, with the number of addresses by state and the owners with most. The caller must hold mu.
func (a *allocator) exhausted(txn statedb.ReadTxn, f *family, now time.Time) error {
	u := ipam.Count(txn, a.table, f.name, f.free.Prefix())
	text := fmt.Sprintf("%d used (%d by endpoints, %d allocated and not claimed yet, %d by the node), %d quarantined, %d excluded",
		u.Claimed+u.Allocated+u.Reserved, u.Claimed, u.Allocated, u.Reserved, u.Quarantined, u.Excluded)
	if owners := a.owners(txn, f); owners != "" {
		text += "; by " + owners
	}
	hint := "delete pods or give the node a larger pod CIDR"
	if at, ok := f.quarantined.next(); ok {
		hint = fmt.Sprintf("one is free in %v", max(0, at.Add(minQuarantine-a.settings.quarantine).Sub(now)).Round(time.Second))
	}
	return fmt.Errorf("%s of %s: %w: %s; %s", f.name, f.free.Prefix(), ipam.ErrExhausted, text, hint)
}

// owners names the groups with most addresses: namespaces of pods, or owners without a namespace.
func (a *allocator) owners(txn statedb.ReadTxn, f *family) string {
	counts := map[string]int{}
	for row := range a.table.All(txn) {
		if f.contains(row.Addr) {
			counts[groupOf(row)]++
		}
	}
	groups := make([]string, 0, len(counts))
	for group := range counts {
		groups = append(groups, group)
	}
	slices.SortFunc(groups, func(x, y string) int {
		return cmp.Or(cmp.Compare(counts[y], counts[x]), cmp.Compare(x, y))
	})
	rest := max(0, len(groups)-topOwners)
	parts := make([]string, 0, topOwners+1)
	for _, group := range groups[:len(groups)-rest] {
		parts = append(parts, fmt.Sprintf("%s (%d)", quote(group), counts[group]))
	}
	if rest > 0 {
		parts = append(parts, fmt.Sprintf("%d others", rest))
	}
	return strings.Join(parts, ", ")
}

func groupOf(row address) string {
	if namespace, _, isPod := strings.Cut(row.Owner, "/"); isPod {
		return namespace + "/*"
	}
	return row.Owner
}

// quote makes external names printable and limits their length.
func quote(s string) string {
	const longest = 80
	if len(s) > longest {
		s = s[:longest] + "..."
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) || r == '"' }) || s == "" {
		return strconv.Quote(s)
	}
	return s
}

// dump returns the output of the command ipam/dump: one line for each address that is not free, then the summary.
func (a *allocator) dump() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	txn := a.db.ReadTxn()
	var out strings.Builder
	for row := range a.table.All(txn) {
		fmt.Fprintf(&out, "%s %s %s", row.Addr, row.State, quote(row.Owner))
		if row.State == ipamaddresses.Claimed {
			fmt.Fprintf(&out, " %s", quote(row.Attachment))
		}
		out.WriteByte('\n')
	}
	var usages []ipam.Usage
	for _, f := range []*family{&a.ipv4, &a.ipv6} {
		if f.free == nil {
			if f.enabled {
				fmt.Fprintf(&out, "%s: waiting for %s\n", f.name, f.waitingFor)
			}
			continue
		}
		u := ipam.Count(txn, a.table, f.name, f.free.Prefix())
		usages = append(usages, u)
		fmt.Fprintf(&out, "%s: %d quarantined, %d excluded, %d of previous ranges, %d quarantines cut short\n",
			f.name, u.Quarantined, u.Excluded, u.Outside, f.events.EarlyReuses)
	}
	if len(usages) > 0 {
		fmt.Fprintln(&out, ipam.StatusLine(usages))
	}
	return out.String()
}
