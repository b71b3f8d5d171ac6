package celltest

import (
	"errors"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// Maps implements the interfaces of package bpfmaps with kernel maps that are not pinned, by name. It formats no entries.
type Maps map[string]*ebpf.Map

// CopyOf is the prefix of the name of the copy of a map with another size.
const CopyOf = "copy of "

// Get implements [pinnedmaps.Maps].
func (m Maps) Get(name string) (*ebpf.Map, error) { return m[name], nil }

// All implements [pinnedmaps.Maps].
func (m Maps) All() (map[string]*ebpf.Map, error) { return m, nil }

// Put implements [pinnedmaps.Maps].
func (m Maps) Put(name string, key, value any) error { return m[name].Put(key, value) }

// Delete implements [pinnedmaps.Maps].
func (m Maps) Delete(name string, key any) error { return m[name].Delete(key) }

// Entries implements [pinnedmaps.Maps].
func (Maps) Entries(string) ([]pinnedmaps.Entry, error) { return nil, nil }

// PutPrevious implements [pinnedmaps.PreviousLayouts]. There is no shadow map.
func (m Maps) PutPrevious(name string, key, value, _ any) error { return m.Put(name, key, value) }

// Each implements [pinnedmaps.Copies].
func (m Maps) Each(name string, do func(m *ebpf.Map) error) error {
	if other := m[CopyOf+name]; other != nil {
		return errors.Join(do(m[name]), do(other))
	}
	return do(m[name])
}
