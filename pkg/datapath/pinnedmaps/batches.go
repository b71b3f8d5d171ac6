package pinnedmaps

// Batches changes many entries of a map with one system call, and of its shadow map like Put and Delete. Keys and values are slices.
type Batches interface {
	Maps
	// PutBatch writes entries in order until one fails, and returns the number of written entries.
	PutBatch(name string, keys, values any) (int, error)
	// DeleteBatch deletes entries in order; it stops at a missing entry with [ebpf.ErrKeyNotExist].
	DeleteBatch(name string, keys any) (int, error)
}
