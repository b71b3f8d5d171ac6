package maps

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
)

// dumped is one element of a map.
type dumped = pinnedmaps.Entry

// Dump implements kernel. It omits free elements of arrays, whose values are all zero.
func (realKernel) Dump(m *ebpf.Map, spec *ebpf.MapSpec) ([]dumped, error) {
	switch m.Type() {
	case ebpf.RingBuf:
		return nil, nil // reading it would take events away from the monitor
	case ebpf.SkStorage:
		return nil, nil // entries belong to sockets; reading one requires a descriptor of its socket
	case ebpf.PerCPUArray, ebpf.PerCPUHash:
		return dumpPerCPU(m, spec)
	}
	var (
		entries    []dumped
		key, value []byte
	)
	all := m.Iterate()
	for all.Next(&key, &value) {
		if m.Type() == ebpf.Array && zero(value) {
			continue
		}
		entries = append(entries, dumped{Key: show(spec.Key, key), Value: show(spec.Value, value)})
	}
	if err := all.Err(); err != nil {
		return nil, fmt.Errorf("read map %s: %w", spec.Name, err)
	}
	return entries, nil
}

func dumpPerCPU(m *ebpf.Map, spec *ebpf.MapSpec) ([]dumped, error) {
	var (
		entries []dumped
		key     []byte
		values  [][]byte
	)
	all := m.Iterate()
	for all.Next(&key, &values) {
		text := pinnedmaps.FormatPerCPU(spec.Value, values)
		if text == "0" {
			continue
		}
		entries = append(entries, dumped{Key: show(spec.Key, key), Value: text})
	}
	if err := all.Err(); err != nil {
		return nil, fmt.Errorf("read map %s: %w", spec.Name, err)
	}
	return entries, nil
}

func show(t btf.Type, data []byte) string { return pinnedmaps.Format(t, data) }

func zero(data []byte) bool {
	for _, b := range data {
		if b != 0 {
			return false
		}
	}
	return true
}
