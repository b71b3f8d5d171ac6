package overlay

import (
	"errors"
	"fmt"

	"github.com/cilium/hive/cell"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/overlays"
)

// device is a device in the kernel.
type device struct {
	Index    int
	Type     string // "vxlan", ...
	Metadata bool   // the device takes outer addresses from the metadata of packets
	Port     uint16
	Group    uint32
	MAC      mac.Addr
	MTU      int
	Up       bool
}

// ours reports whether an agent created a device with the agent's name: it has the group of the agent's devices, or the MAC that the agent gives it, as after
// another program has changed the group. The MAC may be zero.
func (d device) ours(addr mac.Addr) bool {
	return d.Type == "vxlan" && d.Metadata && (d.Group == podlink.OverlayGroup || addr != mac.Addr{} && d.MAC == addr)
}

// kernel is the interface of the reconciler to the kernel. Devices are addressed by name.
type kernel interface {
	Get(name string) (d device, found bool, err error)
	// Create creates a device of the agent, which is down. EEXIST and EADDRINUSE mean that another device or process uses the port.
	Create(name string, port uint16, addr mac.Addr) error
	// Set gives a device the group, MAC and MTU of want, and sets it up when want is up. It never sets a device down.
	Set(name string, want device) error
	Delete(name string) error // a missing device is a success
	// PortOwner names the device other than own, or the process, that uses a UDP port; "" when none is found.
	PortOwner(port uint16, own string) (string, error)
	// Complete creates or reuses the pair of devices that completes checksums, gives it an MTU in bytes, and sets it up when up is true. It never sets it down.
	Complete(mtu int, up bool) error
	// EndCompletion deletes the pair. A missing pair is a success.
	EndCompletion() error
	// Publish writes for programs the index of the device, 0 for none, and the addresses, the device towards the tunnel and the frame properties of the row.
	Publish(index int, row *overlays.Overlay) error
}

// realKernel implements [kernel].
type realKernel struct {
	handle *rtnl.Handle
	maps   pinnedmaps.Maps
	procfs string
}

func newKernel(lc cell.Lifecycle, m pinnedmaps.Maps, a agentconfig.Agent) kernel {
	k := &realKernel{maps: m, procfs: a.Procfs}
	lc.Append(cell.Hook{
		OnStart: func(cell.HookContext) (err error) { k.handle, err = rtnl.Open(); return err },
		OnStop:  func(cell.HookContext) error { k.handle.Close(); return nil },
	})
	return k
}

func (k *realKernel) Get(name string) (device, bool, error) {
	link, err := k.handle.LinkByName(name)
	if err != nil {
		if rtnl.IsGone(err) {
			return device{}, false, nil
		}
		return device{}, false, err
	}
	a := link.Attrs()
	if a.Name != name { // found by an alternative name: another device
		return device{}, false, fmt.Errorf("%s has this name as an alternative name: remove the alternative name", a.Name)
	}
	hw, _ := mac.FromHardwareAddr(a.HardwareAddr)
	d := device{Index: a.Index, Type: link.Type(), Group: a.Group, MAC: hw, MTU: a.MTU, Up: a.RawFlags&unix.IFF_UP != 0}
	if v, ok := link.(*netlink.Vxlan); ok {
		d.Metadata, d.Port = v.FlowBased, uint16(v.Port)
	}
	return d, true, nil
}

func (k *realKernel) Create(name string, port uint16, addr mac.Addr) error {
	return k.handle.LinkAdd(&netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: name, Group: podlink.OverlayGroup, HardwareAddr: addr.HardwareAddr(), TxQLen: 1000},
		FlowBased: true, Port: int(port),
	})
}

func (k *realKernel) Set(name string, want device) error {
	link, err := k.handle.LinkByName(name)
	if err != nil {
		return err
	}
	a := link.Attrs()
	if a.Group != want.Group {
		err = errors.Join(err, k.handle.LinkSetGroup(link, int(want.Group)))
	}
	if hw, _ := mac.FromHardwareAddr(a.HardwareAddr); hw != want.MAC {
		err = errors.Join(err, k.handle.LinkSetHardwareAddr(link, want.MAC.HardwareAddr()))
	}
	if want.MTU != 0 && a.MTU != want.MTU {
		err = errors.Join(err, k.handle.LinkSetMTU(link, want.MTU))
	}
	if want.Up && a.RawFlags&unix.IFF_UP == 0 {
		err = errors.Join(err, k.handle.LinkSetUp(link))
	}
	return err
}

func (k *realKernel) Delete(name string) error {
	link, err := k.handle.LinkByName(name)
	if err == nil {
		err = k.handle.LinkDel(link)
	}
	if err != nil && !rtnl.IsGone(err) {
		return err
	}
	return nil
}

func (k *realKernel) PortOwner(port uint16, own string) (string, error) {
	links, err := k.handle.Links()
	if err != nil {
		return "", err
	}
	for _, l := range links {
		if v, ok := l.(*netlink.Vxlan); ok && v.Port == int(port) && v.Name != own {
			return "device " + v.Name, nil
		}
	}
	return processOf(k.procfs, port)
}

func (k *realKernel) Publish(index int, row *overlays.Overlay) error {
	frames := bpf.Encap{Mac: row.HostMAC}
	if index != 0 && row.Way != 0 { // programs encapsulate only while the device exists for the packets that they leave to it
		frames.Mtu = uint32(row.RouteMTU)
	}
	return errors.Join(
		k.maps.Put(bpf.MapOverlay, uint32(0), bpf.Overlay{Ifindex: uint32(index), Source: bpf.IPv4Word(row.Source), Way: uint32(row.Way),
			Ipv4: bpf.IPv4Word(row.IPv4), Ipv6: bpf.IPv6Bytes(row.IPv6)}),
		k.maps.Put(bpf.MapEncap, uint32(0), frames))
}
