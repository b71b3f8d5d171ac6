package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
)

// Lister lists sockets that programs have connected to backends.
type Lister struct {
	programs map[uint8]*ebpf.Program // by protocol
}

// NewLister loads the iterators, which read values of a map of type SK_STORAGE. It needs CAP_BPF, CAP_PERFMON and kernel BTF.
func NewLister(stored *ebpf.Map) (*Lister, error) {
	spec, err := bpf.Load(bpf.SockList)
	if err != nil {
		return nil, err
	}
	l := &Lister{map[uint8]*ebpf.Program{}}
	for protocol, name := range map[uint8]string{unix.IPPROTO_TCP: bpf.SockListTCP, unix.IPPROTO_UDP: bpf.SockListUDP} {
		program := spec.Programs[name]
		if err := program.Instructions.AssociateMap(bpf.MapSockConnected, stored); err != nil {
			l.Close()
			return nil, fmt.Errorf("set the map of program %s: %w", name, err)
		}
		loaded, err := ebpf.NewProgram(program)
		if errors.Is(err, ebpf.ErrNotSupported) {
			err = fmt.Errorf("%w: the kernel needs CONFIG_DEBUG_INFO_BTF", err)
		}
		if err != nil {
			l.Close()
			return nil, fmt.Errorf("load program %s: %w", name, err)
		}
		l.programs[protocol] = loaded
	}
	return l, nil
}

// Close unloads the iterators.
func (l *Lister) Close() {
	for _, p := range l.programs {
		_ = p.Close()
	}
}

// List lists the sockets of a protocol in a network namespace that have a value in the map; [netns.None] is the namespace of the thread. A socket that is
// added or removed meanwhile may hide another, or make it appear twice. Entering another namespace needs CAP_SYS_ADMIN.
func (l *Lister) List(ns netns.NsHandle, protocol uint8) (sockets []bpf.SockListed, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("list the sockets of protocol %d that are connected to backends: %w", protocol, err)
		}
	}()
	iter, err := link.AttachIter(link.IterOptions{Program: l.programs[protocol]})
	if err != nil {
		return nil, err
	}
	defer iter.Close()
	var reader io.ReadCloser
	if err := inside(ns, func() (err error) {
		reader, err = iter.Open() // the iterator keeps the current namespace
		return err
	}); err != nil {
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
