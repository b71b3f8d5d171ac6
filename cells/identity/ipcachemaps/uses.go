package ipcachemaps

import (
	"net/netip"
	"sync"

	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// uses records the ids and addresses with which the rows of nodes were written. Rows need a second write only if the recorded values differ from the present
// ones: at a start, most ids are known before their rows are written.
type uses struct {
	mu sync.Mutex // guards of; held while the values of a row are read and recorded
	of map[string]use
}

// use has the values with which the rows of one node were written since the rows were last marked.
type use struct {
	known
	addrUsed bool // a row was written with the address; all are written with the id
	manyIDs  bool // rows were written with different ids
	manyAddr bool // rows were written with different addresses
}

// record records the values of a row that will be written. The caller must hold mu.
func (u *uses) record(node string, now known, withAddr bool) {
	is, found := u.of[node]
	is.manyIDs = is.manyIDs || found && is.id != now.id
	is.id = now.id
	if withAddr {
		is.manyAddr = is.manyAddr || is.addrUsed && is.addr != now.addr
		is.addr, is.addrUsed = now.addr, true
	}
	u.of[node] = is
}

// outdated reports whether a row of a node was written with another id (true) or only with another address (false) than the present one. The caller must then
// mark the rows of the node: their values are no longer recorded.
func (u *uses) outdated(node string, now known) (id, outdated bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	is, found := u.of[node]
	switch {
	case found && (is.manyIDs || is.id != now.id):
		delete(u.of, node)
		return true, true
	case is.addrUsed && (is.manyAddr || is.addr != now.addr):
		is.addrUsed, is.manyAddr = false, false
		u.of[node] = is
		return false, true
	}
	return false, false
}

// forget deletes the record of a node without rows.
func (u *uses) forget(node string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.of, node)
}

// use returns the map entry of a row that will be written, and the address of [nodeLookup.peer], and records the id and the address. It reads a new snapshot:
// a change that it does not see is visible only later, and the round of the follower for that change finds the record.
func (n nodeLookup) use(e *ipcache.Entry, have value) (v value, peer netip.Addr) {
	if e.Node() == "" {
		return value{Identity: e.Identity}, netip.Addr{}
	}
	u := &n.Writer.uses
	u.mu.Lock()
	defer u.mu.Unlock()
	txn := n.DB.ReadTxn()
	v, peer = n.value(txn, e, have), n.peer(txn, e)
	u.record(e.Node(), known{n.id(txn, e.Node()), peer}, e.Owner() != ipcache.OwnerCiliumEndpoints)
	return v, peer
}
