package loader

import (
	"context"
	"errors"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tc"
)

// kernel is all that this cell asks of the kernel. Its parts are open from the start hook to the stop hook.
type kernel struct {
	Programs programs
	Pods     podLinks
	Devices  deviceLinks
	State    protocolState
}

// program is one loaded program.
type program struct {
	Name   string
	ID     uint32        // the kernel's number; rises with every load
	loaded *ebpf.Program // nil in tests without a kernel
}

// programs loads the objects.
type programs interface {
	// Load loads all programs or none.
	Load() (map[string]program, error)
	Close()
}

// podLinks is what pod links share.
type podLinks interface {
	Open() error
	Close()
	// Guard puts the nftables rule in place unless it stands.
	Guard() error
	// Hold gives a device the two blocks and leaves it down.
	Hold(ifindex int) error
	// SetFilter makes p the program of a block. With no program it only asks for one of ours: [errNoFilter].
	SetFilter(block uint32, p *program) error
	// Join verifies that the device is the one meant, gives it the blocks and sets it up: [errWrongDevice].
	Join(ifindex int, name string) error
	// Removed waits for devices that somebody takes the blocks off; [tc.ErrLost] when it may have missed some.
	Removed(ctx context.Context) ([]int, error)
	// Observe reads back what the other methods have done.
	Observe() (observed, error)
}

// deviceLinks are programs on single devices, by a key that holds device and hook.
type deviceLinks interface {
	// Attach makes p the program of an egress hook. With no program it only asks for one of ours: [errNoFilter].
	Attach(key string, ifindex int, p *program) error
	// Detach removes what Attach did; gone already is success.
	Detach(key string) error
	// Attached lists the keys of all that Attach ever did and Detach did not undo, with the program's number.
	Attached() (map[string]uint32, error)
}

// observed is the state of all pod links.
type observed struct {
	Guard   bool              // the nftables rule stands
	Blocks  map[int]tc.Blocks // by ifindex of devices that have a clsact
	Filters map[uint32]uint32 // number of our program by block
}

var (
	errNoFilter    = errors.New("no program of an earlier run is attached")
	errWrongDevice = errors.New("the device is not the one that the endpoint was made with")
)

// blocks are the two blocks of every pod link.
func blocks() tc.Blocks { return tc.Blocks{Ingress: podlink.IngressBlock, Egress: podlink.EgressBlock} }
