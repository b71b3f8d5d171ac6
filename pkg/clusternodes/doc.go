// Package clusternodes finds nodes of the cluster by the addresses and pod ranges that the table nodes assigns to them. Readers process single changes, so the
// cost of a change does not depend on the size of the cluster.
package clusternodes
