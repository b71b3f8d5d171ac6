// Package clusternodes reads from Nodes and CiliumNodes where the nodes of the cluster are, and which pods may be where.
package clusternodes
