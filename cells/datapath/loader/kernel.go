package loader

import (
	"context"
	"errors"

	"github.com/cilium/ebpf"

	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
	"github.com/waggle-net/waggle/pkg/datapath/tc"
	"github.com/waggle-net/waggle/pkg/podlink"
)

// kernel is the access of this cell to the kernel. Its parts are open from the start hook to the stop hook.
type kernel struct {
	Programs programs
	Pods     podLinks
	Devices  deviceLinks
	State    protocolState
}

// program is one loaded program.
type program struct {
	Name   string
	ID     uint32        // the kernel's program id; rises with every load
	loaded *ebpf.Program // nil in tests without a kernel
	steps  *ebpf.Map     // the programs of its tail calls; nil if it makes none
}

// programs loads the objects.
type programs interface {
	// Load loads all programs or none. Programs of a previous call stay loaded.
	Load() (map[string]program, error)
	// Resizing reports whether the programs of the last successful call use maps of flows whose size is being changed.
	Resizing() bool
	// Unload unloads the programs of all calls except the last successful one.
	Unload()
	Close()
}

// podLinks changes and observes the objects that pod links share.
type podLinks interface {
	Open() error
	Close()
	// Guard installs the nftables rules unless they are installed.
	Guard() error
	// Hold adds the two blocks to a device and leaves it down.
	Hold(ifindex int) error
	// SetFilter makes p the program of a block. If p is nil, SetFilter only checks that a program of Waggle is attached, and returns
	// [errNoFilter] if none is.
	SetFilter(block uint32, p *program) error
	// Join verifies the identity of the device, adds the blocks to it and sets it up. It returns [errWrongDevice] for another device. It renames a renamed pod
	// link back to name, and sets the MTU if mtu is not 0.
	Join(ifindex int, name string, mtu int) error
	// Changed waits until a device loses its clsact or a filter changes, and returns the changes; rtnl.ErrLost if it may have missed some.
	Changed(ctx context.Context) ([]tc.Change, error)
	// RuleChanged waits until the nftables rules are changed.
	RuleChanged(ctx context.Context) error
	// Observe reads from the kernel the state that the other methods set.
	Observe() (observed, error)
}

// deviceLinks attaches programs to single devices. A key identifies device and hook.
type deviceLinks interface {
	// Attach makes p a program of a hook, the first one unless the hook is shared. If p is nil, Attach only checks that a program of Waggle is attached, and
	// returns [errNoFilter] if none is.
	Attach(key string, at attachPoint, p *program) error
	// Detach undoes Attach; a missing attachment is no error.
	Detach(key string) error
	// Attached returns everything that is attached, by key, including attachments of previous runs.
	Attached() (map[string]attached, error)
	// AttachGroup is like Attach for a hook of a control group; "/" is the root cgroup.
	AttachGroup(key, group, hook string, p *program) error
	// Groups returns the ids of the groups that exist.
	Groups(groups []string) map[string]uint64
	// Ahead lists the programs that see the packets of a pod's link before its filters do.
	Ahead(ifindex int) ([]string, error)
	// PinsChanged waits until a file in the directory of pinned links is removed.
	PinsChanged(ctx context.Context) error
}

// attachPoint is a hook of a device other than a pod's link.
type attachPoint struct {
	IfIndex int
	Hook    string // ingress or egress
	Shared  bool   // foreign programs may be on the hook, also ahead of Waggle's
}

func (p attachPoint) attachType() ebpf.AttachType {
	if p.Hook == ingress {
		return ebpf.AttachTCXIngress
	}
	return ebpf.AttachTCXEgress
}

// filter returns the place of the cls_bpf filter that replaces tcx on older kernels.
func (p attachPoint) filter() tc.AttachPoint {
	if p.Hook == ingress {
		return tc.Ingress(p.IfIndex)
	}
	return tc.Egress(p.IfIndex)
}

// attached is the observed state of one key.
type attached struct {
	IfIndex int      // of the device; 0 if the link was detached
	Group   uint64   // id of the control group; 0 if the link was detached
	Program uint32   // its id
	Ahead   []string // foreign programs that run before Waggle's on the hook
}

// observed is the observed state of all pod links.
type observed struct {
	Guard   bool             // the nftables rules are installed
	Dropped nftguard.Dropped // by these rules
	// Unchecked is why the rules do not check source addresses; nil if they do.
	Unchecked error
	Blocks    map[int]tc.Blocks // by ifindex of devices that have a clsact
	Filters   map[uint32]uint32 // id of Waggle's program by block
	Unpinned  map[uint32]error  // by block: why no pin holds the steps of Waggle's program; nil if one does
	Ahead     []string          // foreign filters that run before Waggle's on a block
}

var (
	errNoFilter    = errors.New("no program of the previous run is attached")
	errWrongDevice = errors.New("the device is not the one that the endpoint was created with")
)

// blocks returns the two blocks of every pod link.
func blocks() tc.Blocks { return tc.Blocks{Ingress: podlink.IngressBlock, Egress: podlink.EgressBlock} }
