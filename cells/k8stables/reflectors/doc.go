// Package reflectors is the source of tables that follows the API server: one cache.Reflector per resource, whose store is
// a table. Objects become rows as they arrive, one by one, and nothing else of them is kept.
//
// What can go wrong, and what answers it:
//   - a watch ends, or its version is gone: the reflector lists again, and the list is compared with the table
//   - an event comes twice or late: events carry rising versions, and those up to the last seen one are dropped
//   - a list comes out (nearly) empty after a full one: it is applied only when a second list, a quorum read, says the same
//   - an object is malformed: it stands in k8s-rejects, and the row of its last good state stays
//   - nobody answers: rows stay, the reflector tries again within 5 s
package reflectors
