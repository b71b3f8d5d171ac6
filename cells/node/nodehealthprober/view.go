package nodehealthprober

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
)

// Headers by which two agents compare the nodes that they know. The request names the requester's node, escaped as in a path. Cilium's agents neither send nor
// read them.
const (
	requesterHeader = "Waggle-Node"
	digestHeader    = "Waggle-Nodes"
	// digestVersion changes with the hashed data. Digests of different versions are not compared.
	digestVersion = "2"
)

// digest summarizes the nodes that an agent knows. Its sum excludes the two nodes whose agents compare: each agent knows its own node before the others do, and
// from its devices instead of the objects.
type digest struct {
	nodes int    // number of all nodes that the agent knows
	sum   uint64 // XOR of the hashes of all nodes except the two that compare
}

// text returns the value of the header.
func (d digest) text() string { return fmt.Sprintf("%s %d %016x", digestVersion, d.nodes, d.sum) }

// parseDigest parses the header of a peer, which may be malicious. It returns nil for a value that is not a digest of this version.
func parseDigest(text string) *digest {
	version, rest, _ := strings.Cut(text, " ")
	number, sum, _ := strings.Cut(rest, " ")
	n, err1 := strconv.ParseUint(number, 10, 31)
	s, err2 := strconv.ParseUint(sum, 16, 64)
	if version != digestVersion || err1 != nil || err2 != nil {
		return nil
	}
	return &digest{int(n), s}
}

// view stores the digest of the nodes that this agent knows. The prober updates it once for all changes of a round; a reply costs two look-ups.
type view struct {
	cluster string
	self    string // name of this node

	mu       sync.Mutex        // guards the fields below
	complete bool              // all nodes of the cluster are known
	known    map[string]uint64 // hashes by name
	sum      uint64
}

func newView(agent agentconfig.Agent) *view {
	return &view{cluster: agent.ClusterName, self: agent.NodeName, known: map[string]uint64{}}
}

// update applies changed rows of nodes, by name. The row of a removed node is nil.
func (v *view) update(changed map[string]*nodes.Node, complete bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.complete = complete
	for name, row := range changed {
		v.sum ^= v.known[name]
		if delete(v.known, name); row != nil {
			v.known[name] = hashOf(v.cluster, row)
			v.sum ^= v.known[name]
		}
	}
}

// reset removes all nodes.
func (v *view) reset() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.complete, v.known, v.sum = false, map[string]uint64{}, 0
}

// with returns the digest for the comparison with the agent of another node, nil until all nodes of the cluster are known. An unknown node does not affect the
// sum.
func (v *view) with(other string) *digest {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.complete {
		return nil
	}
	return &digest{len(v.known), v.sum ^ v.known[v.self] ^ v.known[other]}
}

// hashOf hashes the properties of a node that all agents read from the same objects, in any order. Former ranges are not among them: they depend on what an
// agent has seen. It does not protect against a forged digest, and need not: a node can only make its own agent suspect.
func hashOf(cluster string, node *nodes.Node) uint64 {
	parts := make([]string, 0, len(node.Addresses)+len(node.CIDRs))
	for _, a := range node.Addresses {
		parts = append(parts, a.Type+"="+a.Addr.String())
	}
	for _, p := range node.CIDRs[:len(node.CIDRs)-node.Former] {
		parts = append(parts, p.String())
	}
	slices.Sort(parts)
	sum := sha256.Sum256([]byte(strings.Join(append([]string{cluster, node.Name, node.UID}, slices.Compact(parts)...), "\x00")))
	return binary.BigEndian.Uint64(sum[:])
}
