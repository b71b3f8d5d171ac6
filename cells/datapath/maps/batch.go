package maps

import (
	"errors"
	"reflect"

	"github.com/cilium/ebpf"
)

// PutBatch implements [bpfmaps.Batches].
func (s *store) PutBatch(name string, keys, values any) (int, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, err := s.get(name)
	if err != nil {
		return 0, err
	}
	n, err := o.m.BatchUpdate(keys, values, nil)
	if o.shadow == nil {
		return n, err
	}
	k, v := reflect.ValueOf(keys), reflect.ValueOf(values)
	for i := range n {
		if err := o.shadow.put(k.Index(i).Interface(), v.Index(i).Interface()); err != nil {
			return i, err
		}
	}
	return n, err
}

// DeleteBatch implements [bpfmaps.Batches].
func (s *store) DeleteBatch(name string, keys any) (int, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, err := s.get(name)
	if err != nil {
		return 0, err
	}
	if o.shadow != nil {
		k := reflect.ValueOf(keys)
		for i := range k.Len() {
			if err := o.shadow.remove(k.Index(i).Interface(), o.m.ValueSize()); err != nil {
				return i, errors.Join(err, deleteFirst(o.m, k, i))
			}
		}
	}
	return o.m.BatchDelete(keys, nil)
}

// deleteFirst deletes the first n of keys from m; the shadow map no longer has them.
func deleteFirst(m *ebpf.Map, keys reflect.Value, n int) error {
	if n == 0 {
		return nil
	}
	_, err := m.BatchDelete(keys.Slice(0, n).Interface(), nil)
	return err
}
