package servicemaps

import "github.com/waggle-net/waggle/pkg/datapath/servicemap"

// writes are entries that are written to a map together, each with its requester.
type writes[K comparable, V, W any] struct {
	keys       []K
	values     []V
	requesters []W
}

func (w *writes[K, V, W]) add(requester W, key K, value V) {
	w.keys, w.values, w.requesters = append(w.keys, key), append(w.values, value), append(w.requesters, requester)
}

// put writes all entries, and calls done for each with its error, which is nil for success.
func (w *writes[K, V, W]) put(table servicemap.Table[K, V], done func(requester W, key K, value V, err error)) {
	if len(w.keys) == 0 {
		return
	}
	failed := table.Put(w.keys, w.values)
	for i, key := range w.keys {
		done(w.requesters[i], key, w.values[i], failed[i])
	}
	*w = writes[K, V, W]{}
}

// remove deletes keys and calls done for each.
func remove[K comparable, V any](table servicemap.Table[K, V], keys []K, done func(key K, err error)) {
	if len(keys) == 0 {
		return
	}
	failed := table.Delete(keys)
	for i, key := range keys {
		done(key, failed[i])
	}
}
