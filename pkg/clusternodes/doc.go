// Package clusternodes finds nodes of the cluster by address and by pod range, as the table nodes assigns them. Readers follow single changes: a node that joins or
// changes costs them the same in a cluster of any size.
package clusternodes
