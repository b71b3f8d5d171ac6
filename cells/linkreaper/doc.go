// Package linkreaper deletes the links of pods that are gone.
//
// Deleting a veth takes the kernel 16 to 20 ms, deleting fifty of them by their group 31 ms in all. So a DEL of the
// plugin only moves the host end into a link group ([podlink.DeletedGroup]) and returns; this cell empties the group.
//
// Tables in: devices, endpoints. Tables out: none. It owns the links of that group which are veths and have a name that the
// plugin makes; another link that somebody put there is never deleted, and makes the cell delete the others one by one.
// After a restart the group shows what is left to do.
//
// It also deletes links in the group of living pods ([podlink.Group]) that no endpoint has, when five looks in a row found them
// so: an ADD that was killed leaves such links, and one that is under way has one for less time. A restart begins with the first look again.
package linkreaper
