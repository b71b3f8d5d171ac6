// Package clusternodes reads from Nodes and CiliumNodes where the nodes of the cluster are, and which pods may be where. Readers follow single changes: a node that joins
// or changes costs them the same in a cluster of any size.
package clusternodes
