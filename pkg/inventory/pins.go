package inventory

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/waggle-net/waggle/pkg/datapath/bpffs"
)

// pins finds all pins in Waggle's directory of the BPF file system, including maps and links of other versions. A link is detached when its pin is
// removed.
func (m *Machine) pins() ([]Object, error) {
	is, err := bpffs.Is(m.paths.BPFRoot)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !is {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	entries, err := tree(m.paths.PinDir())
	found := make([]Object, 0, len(entries))
	for _, e := range entries {
		o := e.object("cell maps or loader", "path")
		if o.Note = "directory"; !e.dir {
			o.Note = m.pinned(e.path)
		}
		found = append(found, o)
	}
	return found, err
}

// pinned returns the type of the object behind a pin.
func (m *Machine) pinned(path string) string {
	if p, err := ebpf.LoadPinnedMap(path, nil); err == nil {
		defer p.Close()
		return "map " + p.Type().String()
	}
	if p, err := ebpf.LoadPinnedProgram(path, nil); err == nil {
		defer p.Close()
		return "program " + p.Type().String()
	}
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return "unknown"
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return "link"
	}
	if on := info.TCX(); on != nil && on.Ifindex != 0 {
		return fmt.Sprintf("tcx link on %s", m.device(int(on.Ifindex)))
	}
	return fmt.Sprintf("link of type %d", info.Type)
}
