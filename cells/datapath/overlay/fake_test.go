package overlay

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/script"
	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/cells/agent/driftledger"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/podpools"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/tables/nodes"
	"github.com/waggle-net/waggle/pkg/tables/nodeslots"
	"github.com/waggle-net/waggle/pkg/tables/overlays"
	"github.com/waggle-net/waggle/pkg/tables/pathtests"
	"github.com/waggle-net/waggle/pkg/tables/sysctls"
)

// fakeKernel is a [kernel] with one device and one pair that observes itself: it writes them to the table devices.
type fakeKernel struct {
	db    *statedb.DB
	table statedb.RWTable[*devices.Device]

	mu        sync.Mutex
	device    *device // waggle_vxlan; nil without one
	next      int     // ifindex
	pair      *device // waggle_csum, whose peer has the index after it; nil without the pair
	foreign   bool    // vxlan0 has port 8472
	process   bool    // a process has port 8472
	published string
}

func newFakeKernel(db *statedb.DB, table statedb.RWTable[*devices.Device]) *fakeKernel {
	return &fakeKernel{db: db, table: table, next: 10, published: "nothing"}
}

// change runs f with the lock held and updates the observed table.
func (k *fakeKernel) change(f func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := f(); err != nil {
		return err
	}
	txn := k.db.WriteTxn(k.table)
	defer txn.Commit()
	for _, name := range []string{podlink.OverlayDevice, podlink.ChecksumDevice, podlink.ChecksumPeer} {
		for old := range k.table.List(txn, devices.ByName(name)) {
			_, _, _ = k.table.Delete(txn, old)
		}
	}
	if d := k.pair; d != nil {
		for i, name := range []string{podlink.ChecksumDevice, podlink.ChecksumPeer} {
			_, _, _ = k.table.Insert(txn, &devices.Device{Index: d.Index + i, Name: name, Type: "veth", MTU: d.MTU, Up: d.Up, Group: podlink.OverlayGroup})
		}
	}
	if d := k.device; d != nil {
		_, _, _ = k.table.Insert(txn, &devices.Device{Index: d.Index, Name: podlink.OverlayDevice, Type: d.Type, MTU: d.MTU, MAC: d.MAC, Up: d.Up, Group: d.Group})
	}
	return nil
}

func (k *fakeKernel) Get(string) (d device, found bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.device == nil {
		return device{}, false, nil
	}
	return *k.device, true, nil
}

func (k *fakeKernel) Create(_ string, port uint16, addr mac.Addr) error {
	return k.change(func() error {
		if k.foreign && port == 8472 {
			return unix.EEXIST
		}
		k.device = &device{Index: k.next, Type: "vxlan", Metadata: true, Port: port, Group: podlink.OverlayGroup, MAC: addr, MTU: 1450}
		k.next++
		return nil
	})
}

func (k *fakeKernel) Set(_ string, want device) error {
	return k.change(func() error {
		if want.Up && !k.device.Up && k.process && k.device.Port == 8472 {
			return unix.EADDRINUSE
		}
		d := *k.device
		d.Group, d.MAC = want.Group, want.MAC
		if want.MTU != 0 {
			d.MTU = want.MTU
		}
		d.Up = d.Up || want.Up
		k.device = &d
		return nil
	})
}

func (k *fakeKernel) Delete(string) error {
	return k.change(func() error { k.device = nil; return nil })
}

func (k *fakeKernel) Complete(mtu int, up bool) error {
	return k.change(func() error {
		d := device{Index: 20, MTU: mtu, Up: up}
		if k.pair != nil {
			d.Up = up || k.pair.Up
		}
		k.pair = &d
		return nil
	})
}

func (k *fakeKernel) EndCompletion() error {
	return k.change(func() error { k.pair = nil; return nil })
}

func (k *fakeKernel) PortOwner(uint16, string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.foreign:
		return "device vxlan0", nil
	case k.process:
		return "process 7 (tunneld)", nil
	}
	return "", nil
}

func (k *fakeKernel) Publish(index int, row *overlays.Overlay) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.published = fmt.Sprintf("device %d from %s way %d node %s %s, frames of %s up to %d bytes", index, row.Source, row.Way, row.IPv4, row.IPv6,
		row.HostMAC, row.RouteMTU)
	return nil
}

// commands returns script commands that change the fake and print it.
func (k *fakeKernel) commands() hive.ScriptCmdsOut {
	return hive.NewScriptCmds(map[string]script.Cmd{
		"device": script.Command(script.CmdUsage{Summary: "change the kernel as another program does", Args: "add type group|del|down|regroup|foreign|process|free|pair|unpair"},
			func(_ *script.State, args ...string) (script.WaitFunc, error) {
				return nil, k.change(func() error { return k.do(args) })
			}),
		"kernel": script.Command(script.CmdUsage{Summary: "print the fake kernel"},
			func(*script.State, ...string) (script.WaitFunc, error) {
				return func(*script.State) (string, string, error) { return k.print(), "", nil }, nil
			}),
	})
}

func (k *fakeKernel) do(args []string) error {
	switch args[0] {
	case "add":
		k.device, k.next = &device{Index: 9, Type: args[1], Metadata: args[1] == "vxlan", Port: 8472, MTU: 1500, Up: true}, 10
		if args[2] == "ours" {
			k.device.Group = podlink.OverlayGroup
		}
	case "del":
		k.device = nil
	case "down":
		d := *k.device
		d.Up = false
		k.device = &d
	case "regroup":
		d := *k.device
		d.Group = 0
		k.device = &d
	case "pair":
		k.pair = &device{Index: 20, MTU: 1500, Up: true}
	case "unpair":
		k.pair = nil
	case "foreign", "process", "free":
		k.foreign, k.process = args[0] == "foreign", args[0] == "process"
	default:
		return script.ErrUsage
	}
	return nil
}

func (k *fakeKernel) print() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	pair := ""
	if k.pair != nil {
		pair = fmt.Sprintf("; pair %d mtu %d up %t", k.pair.Index, k.pair.MTU, k.pair.Up)
	}
	if k.device == nil {
		return fmt.Sprintf("no device, published %s%s\n", k.published, pair)
	}
	return fmt.Sprintf("%s %d port %d mtu %d up %t, published %s%s; the agent's group %t\n", k.device.Type, k.device.Index, k.device.Port, k.device.MTU, k.device.Up,
		k.published, pair, k.device.Group == podlink.OverlayGroup)
}

// contributions records the calls of the cell to the writers of other tables.
type contributions struct {
	mu       sync.Mutex
	claims   []ipcache.Claim
	complete bool
	settings []sysctls.Setting
}

func (c *contributions) Replace(_ string, claims []ipcache.Claim, complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims, c.complete = claims, complete
}

func (c *contributions) Update(_ string, put []ipcache.Claim, remove []netip.Prefix, complete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims = slices.DeleteFunc(slices.Clone(c.claims), func(have ipcache.Claim) bool {
		return slices.Contains(remove, have.Prefix) || slices.ContainsFunc(put, func(p ipcache.Claim) bool { return p.Prefix == have.Prefix })
	})
	c.claims, c.complete = append(c.claims, put...), complete
}

// settingsWriter is contributions as the writer of sysctls; the methods of both writers have the same name.
type settingsWriter struct{ *contributions }

func (w settingsWriter) Replace(_ string, settings []sysctls.Setting) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settings = settings
	return nil
}

// Update fails: the cell does not call it.
func (settingsWriter) Update(string, []sysctls.Setting, []string) error { return errBroken }

func (c *contributions) command() hive.ScriptCmdOut {
	return hive.NewScriptCmd("contributed", script.Command(script.CmdUsage{Summary: "print contributed ranges and settings"},
		func(*script.State, ...string) (script.WaitFunc, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			lines := []string{fmt.Sprintf("complete %t", c.complete)}
			for _, claim := range c.claims {
				lines = append(lines, fmt.Sprintf("range %s identity %d of %s %s", claim.Prefix, claim.Identity, claim.Node, claim.Source))
			}
			for _, s := range c.settings {
				lines = append(lines, s.Name+" = "+s.Value)
			}
			slices.Sort(lines)
			return func(*script.State) (string, string, error) { return strings.Join(lines, "\n") + "\n", "", nil }, nil
		}))
}

// newNodes creates the table of nodes, which a script completes.
func newNodes(db *statedb.DB) (statedb.RWTable[*nodes.Node], hive.ScriptCmdOut, error) {
	return completedBy(db, nodes.NewTable, "nodes/complete")
}

// newSlots creates the table of slots, which a script completes.
func newSlots(db *statedb.DB) (statedb.RWTable[*nodeslots.Slot], hive.ScriptCmdOut, error) {
	return completedBy(db, nodeslots.NewTable, "slots/complete")
}

// newLocalNode creates the table of this node, which a script completes.
func newLocalNode(db *statedb.DB) (statedb.RWTable[*localnode.LocalNode], hive.ScriptCmdOut, error) {
	return completedBy(db, localnode.NewTable, "local-node/complete")
}

// completedBy creates a table that a command initializes.
func completedBy[R any](db *statedb.DB, newTable func(*statedb.DB) (statedb.RWTable[R], error), command string) (statedb.RWTable[R], hive.ScriptCmdOut, error) {
	table, err := newTable(db)
	if err != nil {
		return nil, hive.ScriptCmdOut{}, err
	}
	txn := db.WriteTxn(table)
	defer txn.Commit()
	done := table.RegisterInitializer(txn, "test")
	return table, hive.NewScriptCmd(command, script.Command(script.CmdUsage{Summary: "complete the table " + table.Name()},
		func(*script.State, ...string) (script.WaitFunc, error) {
			txn := db.WriteTxn(table)
			defer txn.Commit()
			done(txn)
			return nil, nil
		})), nil
}

func TestScripts(t *testing.T) {
	t.Parallel()
	celltest.RunVirtual(t, "testdata/*.txtar", func(testing.TB) []cell.Cell { return underTest() })
}

// underTest returns the module with a fake kernel, and the tables that it reads.
func underTest() []cell.Cell {
	c := &contributions{}
	return []cell.Cell{
		agentconfig.Cell, driftledger.Cell,
		cell.Provide(
			newNodes, statedb.RWTable[*nodes.Node].ToTable,
			devices.NewTable, statedb.RWTable[*devices.Device].ToTable,
			newLocalNode, statedb.RWTable[*localnode.LocalNode].ToTable,
			mtus.NewTable, statedb.RWTable[mtus.MTU].ToTable,
			attachments.NewTable, statedb.RWTable[*attachments.Attachment].ToTable,
			pathtests.NewTable, statedb.RWTable[*pathtests.Test].ToTable,
			k8s.NewServiceTable, statedb.RWTable[*k8s.Service].ToTable,
			newSlots, statedb.RWTable[*nodeslots.Slot].ToTable,
			func() ipcache.Writer { return c },
			func() sysctls.Writer { return settingsWriter{c} },
			func() bpf.EncapProbe { return func() bpf.EncapSupport { return bpf.EncapSupport{Modes: 7} } },
			c.command,
			newFakeKernel,
			func(k *fakeKernel) kernel { return k },
			(*fakeKernel).commands,
		),
		podpools.Cell,
		cell.Module("overlay", "Under test", implementation),
	}
}

// If the device lookup fails, Prune does not delete the device and reports the error.
func TestOps_Prune_ReportsErrors(t *testing.T) {
	t.Parallel()
	o := newOps(brokenKernel{&fakeKernel{}})
	if err := o.Prune(t.Context(), nil, func(func(*row, statedb.Revision) bool) {}); !errors.Is(err, errBroken) {
		t.Errorf("got %v, want %v", err, errBroken)
	}
}

func TestMACOf(t *testing.T) {
	t.Parallel()
	one, two := macOf("node-1"), macOf("node-2")
	if one == two || one != macOf("node-1") {
		t.Errorf("%s and %s", one, two)
	}
	if one[0]&3 != 2 { // locally administered, and not a group address
		t.Errorf("%s is no address that a host may choose", one)
	}
}
