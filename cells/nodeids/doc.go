// Package nodeids assigns a number to each other node of the cluster, by which BPF maps name it.
//
// Tables in: nodes, conntrack. Table out: node-ids, complete once nodes is. It reads the maps ipcache and ipcache_prefixes. It owns the files ids.json, ids-1.json
// and so on in the directory nodes of the state directory and nothing in the kernel.
//
// A restart keeps all ids. The id of a removed node is assigned to another one only after a pass of the collector of flows that began after the removal,
// since an entry of a flow may hold the id, and when no entry of ipcache names it. A node that returns under its name before that keeps its id.
package nodeids
