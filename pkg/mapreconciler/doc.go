// Package mapreconciler keeps a hash map of the kernel as a table says: one row, one entry, and nothing else in it.
//
// [Map] writes rows to their entries for a reconciler of statedb. [Check] reads the map back and lets the reconciler repair what
// somebody else has changed; it also serves cells that write their maps in another way.
package mapreconciler
