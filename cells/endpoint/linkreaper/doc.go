// Package linkreaper deletes the links of deleted pods.
//
// The kernel takes 16 to 20 ms to delete a veth, and 31 ms in all to delete fifty of them by their group. So a DEL of the plugin only moves the host end into a
// link group ([podlink.DeletedGroup]) and returns; this cell deletes the group.
//
// Tables in: devices, endpoints. Tables out: none. It owns the veths of that group with a name in the plugin's format. A foreign link in the group is never
// deleted, and makes the cell delete the others one by one. After a restart the group shows the remaining links.
//
// It also deletes links in the group of running pods ([podlink.Group]) without an endpoint, after five scans in a row found them. A killed ADD leaves such
// links, and a running ADD has one for a shorter time. A restart begins with the first scan again.
package linkreaper
