package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/waggle-net/waggle/bpf"
)

// Lister lists sockets that programs have connected to backends.
type Lister struct{ program *ebpf.Program }

// NewLister loads the program that lists them: it needs CAP_BPF and CAP_PERFMON, and the kernel's description of its own types.
func NewLister() (*Lister, error) {
	spec, err := bpf.Load(bpf.SockList)
	if err != nil {
		return nil, err
	}
	program, err := ebpf.NewProgram(spec.Programs[bpf.SockList])
	if errors.Is(err, ebpf.ErrNotSupported) {
		err = fmt.Errorf("%w: the kernel needs CONFIG_DEBUG_INFO_BTF", err)
	}
	if err != nil {
		return nil, fmt.Errorf("load program %s: %w", bpf.SockList, err)
	}
	return &Lister{program}, nil
}

// Close lets the kernel forget the program.
func (l *Lister) Close() { _ = l.program.Close() }

// List lists the sockets of all network namespaces for which a map of type SK_STORAGE has a peer. One that comes or goes meanwhile
// may hide another, or show it twice.
func (l *Lister) List(stored *ebpf.Map) (sockets []bpf.SockListed, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("list the sockets that are connected to backends: %w", err)
		}
	}()
	iter, err := link.AttachIter(link.IterOptions{Program: l.program, Map: stored})
	if err != nil {
		return nil, err
	}
	defer iter.Close()
	reader, err := iter.Open()
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	all, err := io.ReadAll(reader)
	if err != nil {
		return nil, err
	}
	return decode(all)
}

func decode(all []byte) ([]bpf.SockListed, error) {
	size := binary.Size(bpf.SockListed{})
	if len(all)%size != 0 {
		return nil, fmt.Errorf("%d bytes are not sockets of %d bytes each", len(all), size)
	}
	sockets := make([]bpf.SockListed, len(all)/size)
	_, err := binary.Decode(all, binary.NativeEndian, sockets)
	return sockets, err
}
