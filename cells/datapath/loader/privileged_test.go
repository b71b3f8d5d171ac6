package loader

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/datapath/bpffs"
	"github.com/waggle-net/waggle/pkg/datapath/nftguard"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/socketlboptions"
	"github.com/waggle-net/waggle/pkg/testnet"
)

const (
	podName    = "lxc000000000007"
	endpointID = 7

	waitLimit = time.Minute // of each wait; only a failure reaches it
)

var (
	podAddr = netip.MustParseAddr("10.1.0.7")
	router  = netip.MustParseAddr("10.1.0.1")
	hostMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	podMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 2}
)

// newMemoryMaps creates the maps. The argument entries overrides the default number of entries by name.
func newMemoryMaps(t *testing.T, entries map[string]uint32) celltest.Maps {
	t.Helper()
	specs, err := bpf.MapSpecs()
	if err != nil {
		t.Fatal(err)
	}
	maps := celltest.Maps{}
	for name, spec := range specs {
		spec.MaxEntries = cmp.Or(entries[name], spec.MaxEntries)
		m, err := ebpf.NewMap(spec)
		if err != nil {
			t.Fatalf("create map %s: %v", name, err)
		}
		t.Cleanup(func() { _ = m.Close() })
		maps[name] = m
	}
	return maps
}

// node is a namespace with the devices of the agent and one pod, and the real kernel in it.
type node struct {
	t          *testing.T
	host, pod  *testnet.Namespace
	maps       celltest.Maps
	agent      agentconfig.Agent
	kernel     kernel
	hold, link int // ifindexes
	hostIndex  int
	server     *net.UDPConn // in the node
	client     *net.UDPConn // in the pod
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, host: testnet.New(t), pod: testnet.New(t), maps: newMemoryMaps(t, nil),
		agent: agentconfig.Agent{EnableIPv4: true, EndpointShare: 25, BPFRoot: filepath.Join(t.TempDir(), "bpf")}}
	n.kernel = n.newKernel()
	n.host.Do(func() {
		n.hold = n.veth(podlink.HoldDevice, podlink.HoldPeer)
		n.hostIndex = n.veth(podlink.HostDevice, podlink.NetDevice)
		n.makePod()
		n.check(n.kernel.Pods.Open())
	})
	n.pod.Do(n.configurePod)
	n.host.Do(func() {
		for _, name := range []string{podlink.HostDevice, podlink.NetDevice} {
			link, err := netlink.LinkByName(name)
			n.check(err)
			n.check(netlink.LinkSetUp(link))
			if name == podlink.HostDevice {
				n.check(netlink.AddrAdd(link, &netlink.Addr{IPNet: netlink.NewIPNet(router.AsSlice())}))
			}
		}
		server, err := net.ListenUDP("udp4", &net.UDPAddr{IP: router.AsSlice(), Port: 7777})
		n.check(err)
		n.server = server
	})
	t.Cleanup(func() {
		n.kernel.Programs.Close()
		n.kernel.Pods.Close()
		_ = n.server.Close()
		_ = n.client.Close()
	})
	n.writeFacts()
	return n
}

// newKernel returns the kernel of a new run of the agent.
func (n *node) newKernel() kernel {
	n.t.Helper()
	k, err := newKernel(n.maps, n.agent, DefaultConfig, policy.Options{}, socketlboptions.Options{Enabled: true, BindProtection: true}, bpf.NewEncapProbe())
	n.check(err)
	return k
}

// onHost returns the hook of waggle_host.
func onHost(n *node) attachPoint { return attachPoint{IfIndex: n.hostIndex, Hook: egress} }

func (n *node) check(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Error(err)
	}
}

func (n *node) veth(name, peer string) int {
	n.check(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer}))
	link, err := netlink.LinkByName(name)
	if err != nil {
		n.t.Error(err)
		return 0
	}
	return link.Attrs().Index
}

// makePod creates the link as the plugin does: in the group of pod links, with the peer created in the pod, and with the host end down.
func (n *node) makePod() {
	n.check(netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: podName, HardwareAddr: hostMAC, Group: podlink.Group}, PeerName: "eth0",
		PeerHardwareAddr: podMAC, PeerNamespace: netlink.NsFd(int(n.pod.Handle())),
	}))
	link, err := netlink.LinkByName(podName)
	if err != nil {
		n.t.Error(err)
		return
	}
	n.link = link.Attrs().Index
}

func (n *node) configurePod() {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		n.t.Error(err)
		return
	}
	n.check(netlink.AddrAdd(link, &netlink.Addr{IPNet: netlink.NewIPNet(podAddr.AsSlice())}))
	n.check(netlink.LinkSetUp(link))
	index := link.Attrs().Index
	n.check(netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: netlink.NewIPNet(router.AsSlice()), Scope: netlink.SCOPE_LINK}))
	n.check(netlink.NeighAdd(&netlink.Neigh{LinkIndex: index, IP: router.AsSlice(), HardwareAddr: hostMAC, State: netlink.NUD_PERMANENT}))
	client, err := net.DialUDP("udp4", &net.UDPAddr{IP: podAddr.AsSlice()}, &net.UDPAddr{IP: router.AsSlice(), Port: 7777})
	n.check(err)
	n.client = client
}

// writeFacts writes the entries that endpointmaps writes.
func (n *node) writeFacts() {
	n.check(n.maps[bpf.MapEndpointFacts].Put(uint32(endpointID), bpf.EndpointFacts{
		Ifindex: uint32(n.link), Id: endpointID, Identity: 5, PolicyIngress: 1, PolicyEgress: 1, Revision: 1,
		Flags: bpf.FlagIPv4, PodMac: [6]byte(podMAC), HostMac: [6]byte(hostMAC),
		Ipv4: bpf.IPv4Word(podAddr), GatewayIpv4: bpf.IPv4Word(router),
	}))
	n.check(n.maps[bpf.MapLinks].Put(uint32(n.link), uint32(endpointID)))
	n.check(n.maps[bpf.MapEndpoints].Put(bpf.NewAddrKey(podAddr), bpf.EndpointRef{Id: endpointID}))
	n.check(n.maps[bpf.MapEndpoints].Put(bpf.NewAddrKey(router), bpf.EndpointRef{Flags: bpf.FlagHost}))
}

// mountBPF gives the thread its own mounts with a BPF file system. The kernel removes them, and so the pins, with the thread.
func (n *node) mountBPF() {
	n.check(unix.Unshare(unix.CLONE_NEWNS))
	n.check(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	_, err := bpffs.Ensure(filepath.Dir(filepath.Dir(n.kernel.Devices.(*tcxLinks).dir)))
	n.check(err)
}

// attach loads a generation and attaches all programs, in the order of the controller.
func (n *node) attach() (programs map[string]program) {
	n.t.Helper()
	n.host.Do(func() {
		n.mountBPF()
		programs = n.attachInNamespace()
	})
	n.pod.Do(n.awaitCarrier)
	return programs
}

// attachInNamespace is attach for a thread that is in the node's namespace and has a BPF file system.
func (n *node) attachInNamespace() map[string]program {
	n.t.Helper()
	programs, err := n.kernel.Programs.Load()
	n.check(err)
	n.put(n.kernel, programs)
	return programs
}

// put attaches the programs of pods.
func (n *node) put(k kernel, programs map[string]program) {
	n.t.Helper()
	n.check(k.Pods.Guard())
	n.check(k.Pods.Hold(n.hold))
	for _, b := range blockRows {
		p := programs[b.Program]
		n.check(k.Pods.SetFilter(uint32(b.IfIndex), &p))
	}
	n.check(k.Pods.Join(n.link, podName, 0))
}

// awaitCarrier waits until the pod's end has a carrier. Before that it drops all packets.
func (n *node) awaitCarrier() {
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(time.Millisecond) {
		link, err := netlink.LinkByName("eth0")
		if err == nil && link.Attrs().OperState == netlink.OperUp {
			return
		}
		if time.Now().After(deadline) {
			n.t.Errorf("the pod's end is not up: %v", err)
			return
		}
	}
}

// send sends packets from the pod one after the other and counts the packets that the node's stack delivers. It waits long for the first must packets, and
// briefly for others.
func (n *node) send(count, must int) (received int) {
	n.t.Helper()
	buffer := make([]byte, 16)
	for range count {
		if _, err := n.client.Write([]byte("x")); err != nil {
			n.t.Fatalf("send from the pod: %v", err)
		}
	}
	for {
		wait := 200 * time.Millisecond
		if received < must {
			wait = waitLimit
		}
		_ = n.server.SetReadDeadline(time.Now().Add(wait))
		if _, err := n.server.Read(buffer); err != nil {
			return received
		}
		received++
	}
}

func (n *node) setGroup(group uint32) {
	n.host.Do(func() {
		link, err := netlink.LinkByIndex(n.link)
		n.check(err)
		n.check(netlink.LinkSetGroup(link, int(group)))
	})
}

func (n *node) dropped() (packets uint64) {
	n.host.Do(func() {
		state, err := nftguard.Read(guardRule(agentconfig.Agent{}))
		n.check(err)
		packets = state.Unmarked.Packets
	})
	return packets
}

// awaitDropped waits until the rule has counted this many packets: the kernel may process them after the calls that sent them. The pod's own kernel may send
// packets, too.
func (n *node) awaitDropped(packets uint64) {
	n.t.Helper()
	for deadline := time.Now().Add(waitLimit); n.dropped() < packets; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("the rule counted %d packets, want %d", n.dropped(), packets)
		}
	}
}

func TestPrivilegedGuard_LinkWithoutItsFilterPassesNothing(t *testing.T) {
	t.Parallel()
	const packets = 50
	n := newNode(t)
	n.attach()
	if got := n.send(packets, packets); got != packets {
		t.Fatalf("with the filter %d of %d packets reached the node", got, packets)
	}
	if got := n.dropped(); got != 0 {
		t.Fatalf("the rule dropped %d packets of an attached link", got)
	}
	traffic := n.kernel.Pods.(*traffic)
	if err := traffic.tc.DeleteClsact(n.link); err != nil {
		t.Fatal(err)
	}
	if got := n.send(packets, 0); got != 0 {
		t.Fatalf("without the filter %d packets reached the node", got)
	}
	n.awaitDropped(packets)
	n.setGroup(podlink.DeletedGroup)
	if got := n.send(packets, 0); got != 0 {
		t.Fatalf("without the filter %d packets of a link that is being deleted reached the node", got)
	}
	n.awaitDropped(2 * packets)
	n.setGroup(podlink.Group)
	n.host.Do(func() {
		seen, err := n.kernel.Pods.Observe()
		n.check(err)
		if seen.Blocks[n.link] == blocks() || seen.Blocks[n.hold] != blocks() || !seen.Guard {
			t.Errorf("the loss is not seen: %+v", seen)
		}
		n.check(n.kernel.Pods.Join(n.link, podName, 0)) // the repair that the verify job requests
	})
	if got := n.send(packets, packets); got != packets {
		t.Fatalf("after the repair %d of %d packets reached the node", got, packets)
	}
}

func TestPrivilegedJoin_RejectsOtherDevice(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.attach()
	n.host.Do(func() {
		for name, err := range map[string]error{
			"another name":  n.kernel.Pods.Join(n.hold, podName, 0),
			"no such index": n.kernel.Pods.Join(99999, podName, 0),
		} {
			if !errors.Is(err, errWrongDevice) {
				t.Errorf("%s: %v, want %v", name, err, errWrongDevice)
			}
		}
		link, err := netlink.LinkByName(podName)
		n.check(err)
		if a := link.Attrs(); a.RawFlags&unix.IFF_UP == 0 || a.RawFlags&unix.IFF_NOARP == 0 || a.Group != podlink.Group {
			t.Errorf("the link is not up without ARP in our group: %+v", a)
		}
		n.check(netlink.LinkSetGroup(link, int(podlink.DeletedGroup)))
		if err := n.kernel.Pods.Join(n.link, podName, 0); !errors.Is(err, errWrongDevice) {
			t.Errorf("a link that is being deleted: %v, want %v", err, errWrongDevice)
		}
	})
}

func TestPrivilegedSetFilter_NoProgram_NeedsExistingFilter(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.host.Do(func() {
		n.check(n.kernel.Pods.Hold(n.hold))
		if err := n.kernel.Pods.SetFilter(podlink.IngressBlock, nil); !errors.Is(err, errNoFilter) {
			t.Errorf("an empty block: %v, want %v", err, errNoFilter)
		}
	})
	n.attach()
	n.host.Do(func() { n.check(n.kernel.Pods.SetFilter(podlink.IngressBlock, nil)) })
}

func TestPrivilegedDeviceLink_ReusedAndUpdated(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	links := n.kernel.Devices.(*tcxLinks)
	n.host.Do(func() {
		n.mountBPF()
		const key = "waggle_host_egress"
		if err := links.Attach(key, onHost(n), nil); !errors.Is(err, errNoFilter) {
			t.Errorf("nothing is attached: %v, want %v", err, errNoFilter)
		}
		for range 3 { // attached, then reused by later runs
			programs, err := n.kernel.Programs.Load()
			n.check(err)
			p := programs[bpf.HostEgress]
			n.check(links.Attach(key, onHost(n), &p))
			n.check(links.Attach(key, onHost(n), nil)) // a run whose programs do not load
			have, err := links.Attached()
			if err != nil || len(have) != 1 || have[key].Program != p.ID {
				t.Errorf("attached %v, error %v; want program %d", have, err, p.ID)
			}
		}
		n.moveToNewDevice(links, key)
		for range 2 {
			n.check(links.Detach(key))
		}
		if have, err := links.Attached(); err != nil || len(have) != 0 {
			t.Errorf("after Detach: %v, error %v", have, err)
		}
	})
}

// moveToNewDevice deletes and creates the device: the pin of the old device must be replaced.
func (n *node) moveToNewDevice(links *tcxLinks, key string) {
	link, err := netlink.LinkByName(podlink.HostDevice)
	n.check(err)
	n.check(netlink.LinkDel(link))
	n.hostIndex = n.veth(podlink.HostDevice, podlink.NetDevice)
	programs, err := n.kernel.Programs.Load()
	n.check(err)
	p := programs[bpf.HostEgress]
	n.check(links.Attach(key, onHost(n), &p))
	if have, err := links.Attached(); err != nil || have[key].Program != p.ID {
		n.t.Errorf("on the new device: %v, error %v; want program %d", have, err, p.ID)
	}
}

func TestPrivilegedDeviceLink_FilterInPlaceOfTCX(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	links := n.kernel.Devices.(*tcxLinks)
	n.host.Do(func() {
		for range 2 {
			programs, err := n.kernel.Programs.Load()
			n.check(err)
			p := programs[bpf.HostEgress]
			n.check(links.attachFilter("waggle_host_egress", onHost(n), &p))
			if have, err := links.Attached(); err != nil || have["waggle_host_egress"].Program != p.ID {
				t.Errorf("attached %v, error %v; want program %d", have, err, p.ID)
			}
		}
		n.check(links.Detach("waggle_host_egress"))
		if have, err := links.Attached(); err != nil || len(have) != 0 {
			t.Errorf("after Detach: %v, error %v", have, err)
		}
	})
}
