package nodeidallocator

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/tables/nodeids"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// reservedName returns the name of the row that reserves an id whose node is unknown. Names of nodes contain no colon.
func reservedName(id uint16) string { return fmt.Sprint("unknown:", id) }

func isReserved(row *nodeids.NodeID) bool { return row.Name == reservedName(row.ID) }

// reserve returns the rows that reserve the ids in the maps that no file has. Another node with an id in node_addrs would get the address of the previous node
// until the tables are complete, and its packets would be sent there. An id in named, the ids in ipcache, may be released: it has no address, and packets to the
// pods of the previous node would be sent to the other node.
func reserve(rows []*nodeids.NodeID, addrs map[netip.Addr]uint16, named map[uint16]bool) (reserved []*nodeids.NodeID) {
	known := map[uint16]bool{bpf.NodeThis: true}
	for _, row := range rows {
		known[row.ID] = true
	}
	for _, id := range slices.AppendSeq(slices.Collect(maps.Values(addrs)), maps.Keys(named)) {
		if !known[id] && id <= nodeids.Max {
			known[id] = true
			reserved = append(reserved, &nodeids.NodeID{ID: id, Name: reservedName(id)})
		}
	}
	return reserved
}

// forNode returns an id for a new node: the reserved id that has an address of the node, or else the lowest free id; 0 when there is none. It deletes the row
// that reserves the id.
func (t *taken) forNode(n *nodes.Node, rows map[string]*nodeids.NodeID) uint16 {
	for _, ipv6 := range []bool{false, true} {
		id, found := t.addrs[n.Address(ipv6)]
		if name := reservedName(id); found && rows[name] != nil {
			delete(rows, name)
			return id
		}
	}
	return t.take()
}
