package apiserver

import (
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// maxNodeClients limits the clients of /cluster/nodes whose last reply is stored. The least recently used client is dropped, and gets all nodes with its next
// request.
const maxNodeClients = 16

// nodeClients stores which rows each client of /cluster/nodes has received.
type nodeClients struct {
	mu      sync.Mutex
	clients []nodeClient // the most recently used one last
}

type nodeClient struct {
	id   int64
	seen []*nodes.Node // sorted by name
}

func newNodeClients() *nodeClients { return new(nodeClients) }

// news returns the changes since the last request of a client, and its id for the next request. An unknown client gets a new id and all rows. Rows must be
// sorted by name.
func (c *nodeClients) news(id int64, rows []*nodes.Node) (known int64, added, removed []*nodes.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var seen []*nodes.Node
	if i := slices.IndexFunc(c.clients, func(n nodeClient) bool { return n.id == id }); i >= 0 {
		seen = c.clients[i].seen
		c.clients = slices.Delete(c.clients, i, i+1)
	} else {
		id = 1 + rand.Int64N(1<<53-1) // exact in JSON readers with float64 numbers; a client sends 0 to get an id
	}
	if len(c.clients) == maxNodeClients {
		c.clients = slices.Delete(c.clients, 0, 1)
	}
	c.clients = append(c.clients, nodeClient{id, rows})
	added, removed = difference(seen, rows)
	return id, added, removed
}

// difference compares lists that are sorted by name. Rows are immutable, so a different pointer is a changed row.
func difference(old, rows []*nodes.Node) (added, removed []*nodes.Node) {
	for len(old) > 0 || len(rows) > 0 {
		switch {
		case len(old) == 0 || len(rows) > 0 && rows[0].Name < old[0].Name:
			added, rows = append(added, rows[0]), rows[1:]
		case len(rows) == 0 || old[0].Name < rows[0].Name:
			removed, old = append(removed, old[0]), old[1:]
		default:
			if old[0] != rows[0] {
				added = append(added, rows[0])
			}
			old, rows = old[1:], rows[1:]
		}
	}
	return added, removed
}
