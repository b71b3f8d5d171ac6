// Package mapreconciler reconciles a hash map of the kernel with a table: one row, one entry, and no other entries.
//
// [Map] writes rows to their entries for a reconciler of statedb. [Check] reads the map and lets the reconciler repair changes by other writers; it also
// serves cells that write their maps in another way.
package mapreconciler
