package ipcachemaps

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// byNode indexes rows by the name of their node. An index of the table would take twenty times the memory. Most rows are of pods, and most of these are IPv4
// addresses.
type byNode struct {
	pods   map[string][][4]byte // single IPv4 addresses
	others map[string][]ipcache.Key
}

func newByNode() byNode {
	return byNode{map[string][][4]byte{}, map[string][]ipcache.Key{}}
}

// add adds a row that has a node.
func (b byNode) add(e *ipcache.Entry) {
	if addr, ok := wholeIPv4(e); ok {
		remember(b.pods, e.Node(), addr)
		return
	}
	remember(b.others, e.Node(), e.Key())
}

// remove removes a row that has a node.
func (b byNode) remove(e *ipcache.Entry) {
	if addr, ok := wholeIPv4(e); ok {
		forget(b.pods, e.Node(), addr)
		return
	}
	forget(b.others, e.Node(), e.Key())
}

func wholeIPv4(e *ipcache.Entry) (addr [4]byte, ok bool) {
	p := e.Prefix()
	if !p.IsSingleIP() || !p.Addr().Is4() {
		return addr, false
	}
	return p.Addr().As4(), true
}

// has reports whether a node has rows.
func (b byNode) has(node string) bool { return len(b.pods[node])+len(b.others[node]) > 0 }

// keys yields the keys of the rows of a node.
func (b byNode) keys(node string) iter.Seq[ipcache.Key] {
	return func(yield func(ipcache.Key) bool) {
		for _, addr := range b.pods[node] {
			if !yield(ipcache.KeyOf(netip.PrefixFrom(netip.AddrFrom4(addr), 32))) {
				return
			}
		}
		for _, key := range b.others[node] {
			if !yield(key) {
				return
			}
		}
	}
}

// nodes returns the sorted names of the nodes of all rows.
func (b byNode) nodes() []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(b.pods)), maps.Keys(b.others))
	slices.Sort(names)
	return slices.Compact(names)
}
