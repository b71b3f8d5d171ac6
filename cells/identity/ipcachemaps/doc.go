// Package ipcachemaps maps addresses and prefixes to security identities.
//
// Owners contribute sets of claims through [github.com/waggle-net/waggle/pkg/tables/ipcache.Writer]. If several owners claim a prefix, the best claim wins, and
// the others are stored until the winner is removed. A controller in this cell claims the addresses of local endpoints.
//
// Tables in: endpoints, endpoint-policies, cilium-endpoints, nodes, node-ids, identities, policy-progress, attachments. Tables out: ipcache, refused-claims.
// Kernel state: every entry of the maps ipcache (whole addresses), ipcache_prefixes (shorter prefixes) and epoch_shards, and slot 0 of the map epochs. It is
// the only writer.
//
// Entries that another program changes or adds are repaired by verification, one slice every --verify-interval.
//
// After a restart the maps hold the entries of the previous run. Equal rows cost one read each. Entries without a row are removed only after all owners have
// contributed all their claims and the ids of all nodes are known.
package ipcachemaps
