// Package servicemaps writes the services that this node balances to the BPF maps from which the datapath serves them.
//
// One loop writes them in an order that guarantees that no program finds an entry of services whose slots, backends, Maglev table, source ranges or affinity
// members are missing. Backends are written first, then everything that entries name, then the entries themselves, each by one atomic replacement, and after
// them unused parts are removed. Slots and Maglev tables of a replaced entry stay unchanged for a second, because a program may just have read that entry; the
// backends in them stay as long. Only if no other slots are free, slots of an entry in force are overwritten (overwrite.go). This order spans two tables and six
// maps, and an entry depends on the results of all previous writes, so reconcilers of the tables do not fit.
//
// The layers of a pass are files: [inputs] lists the rows to handle, [inForce] plans their writes against the known contents of the maps, [writer] makes the
// writes and keeps the work that remains ([backlog]), and status.go reports the results. The [controller] calls them in order; no layer calls a layer above it.
//
// Tables in: frontends, backends. Table out: service-map-usage. Table contributed to: frontends (only status, inForce and applied). A frontend is Done when its
// backends are in the kernel too, so backends have no status: the statuses of tens of thousands of backends would cost nearly as much as the rest of the first
// pass.
//
// Kernel state: every entry of the maps services, backends, service_slots, maglev, affinity_members and source_ranges; no other cell writes them. (Programs
// write affinity.) Entries that another writer changes are restored by a verification every --verify-interval; with more than 5000 entries it verifies one map
// each time.
//
// A full map keeps the entries in force: the status of a row that does not fit, as a whole or in part, names the flag that helps, and the row is retried when
// capacity that it waits for was freed (retries.go). Namespaces with few entries precede others, and each has a quota (namespaces.go). A row without enough slots uses
// as many backends as it has slots. A backend without a row gets no connections, whatever is full.
//
// After a restart the maps serve the entries of the previous run until both tables are complete. Rows that equal their entries cost no write: the entries,
// slots and tables are reused. After that, entries without a row are removed.
package servicemaps
