package bpfmaps

// Batches changes many entries of a map in one call of the kernel, and of its twin as Put and Delete do. Keys and values are slices.
type Batches interface {
	Maps
	// PutBatch writes entries in their order, up to the first that fails, and returns how many it has written.
	PutBatch(name string, keys, values any) (int, error)
	// DeleteBatch deletes likewise; an entry that is not there ends it with [ebpf.ErrKeyNotExist].
	DeleteBatch(name string, keys any) (int, error)
}
