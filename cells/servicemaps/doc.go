// Package servicemaps brings the services that this node balances into the BPF maps from which the datapath serves them.
//
// One loop does it, in an order that is its point: nobody may ever meet an entry of services whose slots, backends, table of Maglev, source
// ranges or members of its affinity are not there. So backends are written first, then what entries name, then the entries themselves, each
// by one atomic replacement, and only then goes what nobody needs any more. Slots and tables of Maglev that an entry has named stay as they
// are for a second, because somebody may have read it just before; the backends in them stay for as long. That order goes across two tables
// and seven maps, and an entry needs the outcome of all the writes before it, so reconcilers of the tables would not do.
//
// Tables: reads frontends and backends and sets the statuses of frontends, nothing else of them; writes service-map-usage. A frontend is done when the backends that it
// names are in the kernel as well, so these need none: those of tens of thousands would cost nearly as much as all the rest of the first pass.
//
// Kernel state: every entry of the maps services, backends, service_slots, maglev, affinity_members and source_ranges; nobody else writes them.
// (Affinity is written by the programs.) Entries that somebody else changes are put right when they are read back, every --verify-interval;
// of more than 5000 entries one map each time.
//
// A full map keeps what is in force: rows that find no room, as a whole or in part, say so in their status with the flag that helps, and are
// tried again when something else has gone. A row whose slots find no room keeps its former backends.
//
// After a restart the maps serve what the earlier run has written, until both tables are complete. Rows that are equal cost no write: their
// entries, slots and tables are taken over. Then goes whatever no row wants.
package servicemaps
