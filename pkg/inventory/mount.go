package inventory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/waggle-net/waggle/pkg/datapath/bpffs"
)

// unmounting is a file in the state directory that exists while the mount point of the BPF file system is being removed. Before, the mount itself is
// the evidence that Waggle created the directory; afterwards there is no other.
const unmounting = "unmounting"

// mount finds the mount of the BPF file system if Waggle created it and it holds no foreign pins; otherwise it must stay. It also finds a mount point
// left by a killed cleanup.
func (m *Machine) mount() ([]Object, error) {
	root := m.paths.BPFRoot
	o := Object{Name: root, Owner: "cell maps or waggle-agent setup", Proof: "source of the mount", Note: "BPF file system"}
	ours, err := bpffs.Ours(root)
	if err != nil {
		return nil, err
	}
	if !ours {
		return m.mountPoint(o)
	}
	others, err := bpffs.ForeignEntries(root, m.paths.PinDir())
	if len(others) > 0 || err != nil {
		return nil, err
	}
	o.remove = m.unmount
	return []Object{o}, nil
}

// mountPoint finds the directory if a cleanup was killed before it removed it.
func (m *Machine) mountPoint(o Object) ([]Object, error) {
	text, err := os.ReadFile(m.marker())
	if errors.Is(err, fs.ErrNotExist) || err == nil && string(text) != m.paths.BPFRoot {
		return nil, nil
	}
	o.Proof, o.Note = m.marker(), "mount point of the BPF file system"
	o.remove = func() error { return errors.Join(remove(m.paths.BPFRoot), remove(m.marker())) }
	return []Object{o}, err
}

func (m *Machine) marker() string { return filepath.Join(m.paths.StateDir, unmounting) }

func (m *Machine) unmount() error {
	made, err := bpffs.CreatedDirectory(m.paths.BPFRoot)
	if err != nil {
		return err
	}
	if made {
		// Without a state directory the marker cannot be written, and an empty directory may be left.
		if err := os.WriteFile(m.marker(), []byte(m.paths.BPFRoot), 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("record the creation of %s: %w", m.paths.BPFRoot, err)
		}
	}
	return errors.Join(bpffs.Unmount(m.paths.BPFRoot), remove(m.marker()))
}
