// Package ipcache knows which security identity stands behind which prefix.
//
// Features contribute claims through [github.com/waggle-net/waggle/pkg/tables/ipcache.Writer], each a set of
// its own; where several claim a prefix the best one wins and the others are remembered until it goes. The addresses of
// local endpoints are contributed by a controller in this cell.
//
// Tables: reads endpoints, cilium-endpoints, nodes, node-ids and attachments, writes ipcache. Kernel state: every entry of the maps ipcache (whole addresses),
// ipcache_prefixes (shorter prefixes) and epoch_shards, and slot 0 of the map epochs. It is the only writer.
//
// Entries that another program changes or adds are repaired when they are read back, a slice every --verify-interval.
//
// After a restart the maps hold what the earlier run wrote. Rows that are equal cost one read each; entries without a
// row are removed once the sets of all owners and the ids of all nodes are in, and not before.
package ipcache
