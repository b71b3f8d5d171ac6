// Package reflectors is the source of tables that follows the API server, with one cache.Reflector per resource, whose store is a table. It converts
// each object into a row when the object arrives, and keeps no other part of the object.
//
// Failures and reactions:
//   - a watch ends, or its version is gone: the reflector lists again, and the list is compared with the table
//   - an event arrives twice or late: versions rise from event to event, and an event that is not newer than the last one is dropped
//   - a list is empty, or much shorter than the table: it is applied only after a second list, a quorum read, has confirmed it
//   - an object is malformed: it is in k8s-rejects, and the row of its last good state stays
//   - no API server answers: rows stay, and the reflector tries again within 5 s
package reflectors
