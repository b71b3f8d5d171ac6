package loader

import (
	"context"
	"errors"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/pkg/nftguard"
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
	steps  *ebpf.Map     // the programs of its tail calls; nil when it makes none
}

// programs loads the objects.
type programs interface {
	// Load loads all programs or none. Those of an earlier call stay loaded.
	Load() (map[string]program, error)
	// Resizing reports whether the programs of the last call that succeeded were given maps of flows that get another size.
	Resizing() bool
	// Unload gives up the programs of all calls but the last one that succeeded.
	Unload()
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
	// Join verifies that the device is the one meant, gives it the blocks and sets it up: [errWrongDevice]. One that has
	// another name by now is given its own again, and one with another MTU that MTU; 0 leaves it.
	Join(ifindex int, name string, mtu int) error
	// Changed waits for devices that lose their clsact and for filters that change, by whomever; rtnl.ErrLost when it may
	// have missed some.
	Changed(ctx context.Context) ([]tc.Change, error)
	// RuleChanged waits until somebody changes the nftables rule.
	RuleChanged(ctx context.Context) error
	// Observe reads back what the other methods have done.
	Observe() (observed, error)
}

// deviceLinks are programs on single devices, by a key that holds device and hook.
type deviceLinks interface {
	// Attach makes p a program of a hook, the first unless others share it. With no program it only asks for one of ours:
	// [errNoFilter].
	Attach(key string, at place, p *program) error
	// Detach removes what Attach did; gone already is success.
	Detach(key string) error
	// Attached lists the keys of all that Attach ever did and Detach did not undo.
	Attached() (map[string]attached, error)
	// AttachGroup makes p the program of a hook of a control group, "/" for the topmost. Otherwise it is as Attach.
	AttachGroup(key, group, hook string, p *program) error
	// Groups gives the numbers of those of the groups that exist.
	Groups(groups []string) map[string]uint64
	// Ahead lists the programs that see the packets of a pod's link before its filters do.
	Ahead(ifindex int) ([]string, error)
	// PinsChanged waits until something is removed from where Attach pins.
	PinsChanged(ctx context.Context) error
}

// place is one hook of a device that no pod's link is.
type place struct {
	IfIndex int
	Hook    string // ingress or egress
	Shared  bool   // the device is not ours: programs of others may be there as well, and ahead of ours
}

func (p place) attachType() ebpf.AttachType {
	if p.Hook == ingress {
		return ebpf.AttachTCXIngress
	}
	return ebpf.AttachTCXEgress
}

// filter is where cls_bpf stands in for tcx.
func (p place) filter() tc.Place {
	if p.Hook == ingress {
		return tc.Ingress(p.IfIndex)
	}
	return tc.Egress(p.IfIndex)
}

// attached is what one key stands for.
type attached struct {
	IfIndex int      // of the device; 0 when somebody has detached it
	Group   uint64   // number of the control group; 0 when somebody has detached it
	Program uint32   // its number
	Ahead   []string // other people's programs that run before ours on the hook
}

// observed is the state of all pod links.
type observed struct {
	Guard   bool             // the nftables rule stands
	Dropped nftguard.Dropped // by that rule
	// Unchecked is why the rule does not look at sources; nil when it does.
	Unchecked error
	Blocks    map[int]tc.Blocks // by ifindex of devices that have a clsact
	Filters   map[uint32]uint32 // number of our program by block
	Unpinned  map[uint32]error  // by block: why no pin holds the steps of our program; nil when one does
	Ahead     []string          // other people's filters that run before ours on a block
}

var (
	errNoFilter    = errors.New("no program of an earlier run is attached")
	errWrongDevice = errors.New("the device is not the one that the endpoint was made with")
)

// blocks are the two blocks of every pod link.
func blocks() tc.Blocks { return tc.Blocks{Ingress: podlink.IngressBlock, Egress: podlink.EgressBlock} }
