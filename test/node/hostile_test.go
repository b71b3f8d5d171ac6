package node_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/nodekit"
	"github.com/waggle-net/waggle/test/nodekit/load"
)

// A host outside and a pod attack the node in all ways at once, and the other pods lose no packet: not between each other, not on connections that they begin
// with a host outside, and not on connections that the host tries to reset. No address of the node lets the pod, which may reach the entity world, reach a
// process of the node. The soak has 50 pods and takes ten minutes.
func TestPrivilegedHostile_HostAndPod_DoNotDisruptPods(t *testing.T) {
	t.Parallel()
	options := roomy()
	if !soaks() { // tables that the attacks would fill in seconds
		options.AgentArgs = []string{"--bpf-nat-global-max=4096", "--bpf-ct-global-tcp-max=4096"}
	}
	node := startNode(t, options)
	if err := node.RouteFromOutside("10.244.0.0/16", "fd00:10:244:1::/64"); err != nil {
		t.Fatal(err)
	}
	count, length := 6, 5*time.Second
	if soaks() { // the same in a soak of any length: the attacks hold the machine's load generator until they end
		count, length = 50, 10*time.Minute
	}
	pods, paths := ring(t, node, count)
	hostile, heard := hostilePod(t, node)
	standing, attacks := attacksOn(t, node, hostile, pods[:4]) // the quotas of four pods fill the whole table
	l := load.StartFor(t, gentle(), paths, nil)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var talking, attacking sync.WaitGroup
	for _, c := range standing {
		talking.Go(func() {
			for ctx.Err() == nil {
				if err := c.talks(); err != nil {
					t.Errorf("a connection %s that the host outside resets: %v", c.name, err)
					return
				}
				time.Sleep(10 * callEvery)
			}
		})
	}
	for _, a := range attacks {
		attacking.Go(func() {
			if err := floodFor(ctx, l.Turn(), a.from, 1000, a.frames, length); err != nil {
				t.Errorf("%s: %v", a.name, err)
			}
		})
	}
	attacking.Wait()
	stop()
	talking.Wait()
	for _, f := range families {
		halfOpen(t, node, f.ipv6)
		got := 0
		for heard(f.ipv6, false) != nil {
			got++
		}
		if got > 0 {
			t.Errorf("a process of the node has got %d packets of the pod that may not reach it, over %s", got, f.name)
		}
	}
	lostNothing(t, l)
}

// floodFor sends frames for a duration, and continues while less than half of them were sent because the sender had no CPU.
func floodFor(ctx context.Context, turn *load.Turn, from nodekit.NetNS, perSecond int, frames [][]byte, length time.Duration) error {
	sent, want := 0, int(float64(perSecond)*length.Seconds())
	flood := func(d time.Duration) error {
		part, stop := context.WithTimeout(ctx, d)
		defer stop()
		n, err := turn.Flood(part, from, "eth0", perSecond, frames)
		sent += n
		return err
	}
	err := flood(length)
	for deadline := time.Now().Add(awaitFor); err == nil && sent < want/2 && ctx.Err() == nil; err = flood(time.Second) {
		if time.Now().After(deadline) {
			return fmt.Errorf("inconclusive: %d of %d packets were sent", sent, want)
		}
	}
	return err
}

// hostilePod adds a pod that may reach the entity world and ping the node, and no process of the node. heard reports an error unless the process on the node
// has received packets as wanted.
func hostilePod(t *testing.T, node *nodekit.Node) (pod *nodekit.Pod, heard func(ipv6, want bool) error) {
	t.Helper()
	write := func(manifests ...string) {
		if err := node.WriteManifest("hostile.yaml", strings.Join(manifests, "\n---\n")); err != nil {
			t.Fatal(err)
		}
	}
	objects := []string{"{apiVersion: v1, kind: Namespace, metadata: {name: hostile, labels: {kubernetes.io/metadata.name: hostile}}}",
		"{apiVersion: v1, kind: Pod, metadata: {namespace: hostile, name: hostile, labels: {app: hostile}}, spec: {containers: [{name: c}]}}"}
	write(objects...)
	pod, heard = addPod(t, node, "hostile/hostile"), listenOnTheNode(t, node)
	sendAndCheck := func(ipv6, want bool) error {
		a := attackerAt(t, node, pod)
		frame := a.datagram(a.from(pod.Addr(ipv6)), netip.AddrPortFrom(node.UplinkAddr(ipv6), 2222))
		return errors.Join(nodekit.SendFrame(pod, "eth0", frame), heard(ipv6, want))
	}
	for _, f := range families {
		if err := sendAndCheck(f.ipv6, true); err != nil {
			t.Fatalf("before there is a policy, over %s: %v", f.name, err)
		}
	}
	write(append(objects, ciliumPolicy("hostile", "endpointSelector: {}, egress: [{toEntities: [world]}, "+
		"{toEntities: [host], icmps: [{fields: [{family: IPv4, type: 8}, {family: IPv6, type: 128}]}]}]"))...)
	for _, f := range families {
		eventually(t, func() error { return sendAndCheck(f.ipv6, false) })
	}
	return pod, heard
}

// ring adds pods of which each talks to the next one, and every third to the host outside.
func ring(t *testing.T, node *nodekit.Node, count int) (pods []*nodekit.Pod, paths []load.Path) {
	t.Helper()
	for i := range count {
		pods = append(pods, addPod(t, node, fmt.Sprintf("honest-%d", i)))
	}
	for i, pod := range pods {
		next := pods[(i+1)%len(pods)]
		for _, f := range families {
			paths = append(paths, load.Path{Name: fmt.Sprintf("%d to next %s", i, f.name), From: pod, To: next, Addr: next.Addr(f.ipv6)})
			if i%3 == 0 {
				paths = append(paths, load.Path{Name: fmt.Sprintf("%d to outside %s", i, f.name), From: pod, To: node.OutsideHost(), Addr: outsideAddr(f.ipv6)})
			}
		}
	}
	return pods, paths
}

// A host outside begins connections from spoofed addresses to ports on which pods listen. The pods reply, and the connections stay half open: none enters the
// table of established flows. Other connections keep working and new ones are opened, also to the pods under attack.
func TestPrivilegedHostile_HalfOpenConnectionsAreNotEstablished(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{AgentArgs: []string{"--bpf-ct-global-tcp-max=4096"}})
	routeBack(t, node)
	client, honest := addPod(t, node, "client"), addPod(t, node, "honest")
	var victims []*nodekit.Pod
	for i := range 4 { // the quotas of four endpoints fill the whole table
		victims = append(victims, addPod(t, node, fmt.Sprintf("victim-%d", i)))
	}
	host := hostOutside(t, node)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			var servers []netip.AddrPort
			for _, pod := range append([]*nodekit.Pod{honest}, victims...) {
				server, done := echoServer(t, "tcp", pod, pod.Addr(f.ipv6))
				defer done()
				servers = append(servers, server)
			}
			standing := connect(t, client, "tcp", servers[0])
			next := 0
			frames := many(func() []byte {
				next++
				return host.tcp(host.from(host.spoof(f.ipv6)), servers[1+next%len(victims)], &layers.TCP{SYN: true})
			})
			turn := load.TakeTurn(t)
			flooded := make(chan error, 1)
			go func() { flooded <- floodFor(t.Context(), turn, node.OutsideHost(), 4000, frames, 2*time.Second) }()
			for begun := 0; len(flooded) == 0; begun++ {
				time.Sleep(callEvery) // all connections of the client together stay far below its own quota
				conn, err := talk("tcp", client, servers[begun%len(servers)])
				if err != nil {
					t.Errorf("connection %d: %v", begun, err)
					continue
				}
				if err := errors.Join(exchange(standing), conn.Close()); err != nil {
					t.Errorf("the connection that stood: %v", err)
				}
			}
			if err := errors.Join(<-flooded, turn.Release()); err != nil {
				t.Fatal(err)
			}
			halfOpen(t, node, f.ipv6)
		})
	}
}

// halfOpen requires that pods have replied to connections from spoofed addresses, and that none of these is established.
func halfOpen(t *testing.T, node *nodekit.Node, ipv6 bool) {
	t.Helper()
	established, begun := bpf.MapCtEst4, []string{bpf.MapCtNew4, bpf.MapCtBurst4}
	if ipv6 {
		established, begun = bpf.MapCtEst6, []string{bpf.MapCtNew6, bpf.MapCtBurst6}
	}
	eventually(t, func() error { // a busy kernel delays the replies
		answered := 0
		for _, name := range begun {
			_, n := spoofedFlows(t, ctMap(t, node, name))
			answered += n
		}
		if n, _ := spoofedFlows(t, ctMap(t, node, established)); n != 0 {
			t.Fatalf("%s has %d entries of connections that are half open", established, n)
		}
		if answered < 100 {
			return fmt.Errorf("the pods have answered %d of the connections in %q: the attack does not reach them", answered, begun)
		}
		return nil
	})
}

// ctKeyRest is the length in bytes of a key of a map of flows without its two addresses.
const ctKeyRest = 8

// Spoofed sources of the host outside.
var spoofed = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("2001:db8:ff00::/40")}

// spoofedFlows returns the number of entries of a map of flows with a spoofed address, and how many of them have a reply.
func spoofedFlows(t *testing.T, m *ebpf.Map) (n, answered int) {
	t.Helper()
	var key []byte
	var entry bpf.CtEntry
	all := m.Iterate()
	for all.Next(&key, &entry) {
		size := (len(key) - ctKeyRest) / 2
		for _, side := range [][]byte{key[:size], key[size : 2*size]} {
			addr, _ := netip.AddrFromSlice(side)
			if slices.ContainsFunc(spoofed, func(p netip.Prefix) bool { return p.Contains(addr) }) {
				n++
				if entry.Flags&bpf.CtReplied != 0 {
					answered++
				}
			}
		}
	}
	// Concurrent changes of the table may end the iteration early: the counts then cover a part of it.
	if err := all.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		t.Fatal(err)
	}
	return n, answered
}

// attack holds the frames that one place sends continuously.
type attack struct {
	name   string
	from   nodekit.NetNS
	frames [][]byte
}

// attacker creates frames with random fields.
type attacker struct {
	t           *testing.T
	random      *rand.Rand
	source, via net.HardwareAddr
}

// hostOutside returns an attacker at the host outside.
func hostOutside(t *testing.T, node *nodekit.Node) attacker {
	t.Helper()
	return attackerAt(t, node, node.OutsideHost())
}

// attackerAt returns an attacker at a pod or at the host outside.
func attackerAt(t *testing.T, node *nodekit.Node, at nodekit.NetNS) attacker {
	t.Helper()
	if pod, is := at.(*nodekit.Pod); is {
		e := endsOf(t, pod)
		return attacker{t, testseed.New(t), e.pod, e.peer}
	}
	return attacker{t, testseed.New(t), macOf(t, at), macOf(t, node.Host())}
}

// attacksOn returns the attacks of the host outside on open ports and connections of victims, and the attacks of a pod on the node and its tables. The
// connections in standing must survive the attacks.
func attacksOn(t *testing.T, node *nodekit.Node, hostile *nodekit.Pod, victims []*nodekit.Pod) (standing []*revocable, all []attack) {
	t.Helper()
	loopbackIsRouted(t, node)
	host, pod := hostOutside(t, node), attackerAt(t, node, hostile)
	for _, f := range families {
		var servers []netip.AddrPort
		var resets [][]byte
		for _, victim := range victims {
			server, done := echoServer(t, "tcp", victim, victim.Addr(f.ipv6))
			t.Cleanup(done)
			servers = append(servers, server)
			in := bothEnds(t, node, node.OutsideHost(), victim, victim.Addr(f.ipv6))
			out := bothEnds(t, node, victim, node.OutsideHost(), outsideAddr(f.ipv6))
			for c, end := range map[*revocable]net.Conn{in: in.client, out: out.server} {
				c.ignoresReset(t, node.OutsideHost(), host.reset(end))
				standing = append(standing, c)
				for range 256 {
					resets = append(resets, host.reset(end))
				}
			}
		}
		uplink, own, gateway := node.UplinkAddr(f.ipv6), hostile.Addr(f.ipv6), hostile.Gateway(f.ipv6)
		others := []netip.Addr{uplink, netip.MustParseAddr("192.0.2.255"), netip.MustParseAddr("127.0.0.1")}
		if f.ipv6 {
			others = []netip.Addr{uplink, netip.MustParseAddr("2001:db8:2::"), linkLocalOf(t, node, endsOf(t, hostile).host)}
		}
		all = append(all,
			attack{"the host pings the node " + f.name, node.OutsideHost(), many(func() []byte { return host.ping(host.spoof(f.ipv6), uplink) })},
			attack{"the host begins connections as others " + f.name, node.OutsideHost(), many(func() []byte {
				return host.tcp(host.from(host.spoof(f.ipv6)), servers[host.random.IntN(len(servers))], &layers.TCP{SYN: true})
			})},
			attack{"the host resets connections " + f.name, node.OutsideHost(), resets},
			attack{"the pod begins flows " + f.name, hostile, many(func() []byte { return pod.tcp(pod.from(own), pod.from(outsideAddr(f.ipv6)), &layers.TCP{SYN: true}) })},
			attack{"the pod pings the node " + f.name, hostile, many(func() []byte { return pod.ping(own, gateway) })},
			attack{"the pod tries addresses of the node " + f.name, hostile, many(func() []byte {
				return pod.datagram(pod.from(own), netip.AddrPortFrom(others[pod.random.IntN(len(others))], 2222))
			})})
	}
	return standing, all
}

// many creates different frames, which are sent in a cycle.
func many(frame func() []byte) (all [][]byte) {
	for range 4096 {
		all = append(all, frame())
	}
	return all
}

// spoof returns a random spoofed source.
func (a attacker) spoof(ipv6 bool) netip.Addr {
	if ipv6 {
		return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0xff, 14: byte(a.random.Uint32()), 15: byte(a.random.Uint32())})
	}
	return netip.AddrFrom4([4]byte{198, 18 | byte(a.random.Uint32()&1), byte(a.random.Uint32()), byte(a.random.Uint32())})
}

func (a attacker) port() uint16 { return uint16(1024 + a.random.IntN(60000)) }

// from returns a random port of an address.
func (a attacker) from(addr netip.Addr) netip.AddrPort { return netip.AddrPortFrom(addr, a.port()) }

// tcp creates a segment with a random sequence number.
func (a attacker) tcp(src, dst netip.AddrPort, segment *layers.TCP) []byte {
	segment.SrcPort, segment.DstPort = layers.TCPPort(src.Port()), layers.TCPPort(dst.Port())
	segment.Seq, segment.Window = a.random.Uint32(), 1000
	return a.packet(src.Addr(), dst.Addr(), layers.IPProtocolTCP, func(ip gopacket.NetworkLayer) []gopacket.SerializableLayer {
		_ = segment.SetNetworkLayerForChecksum(ip)
		return []gopacket.SerializableLayer{segment}
	})
}

// datagram creates a UDP datagram.
func (a attacker) datagram(src, dst netip.AddrPort) []byte {
	return a.packet(src.Addr(), dst.Addr(), layers.IPProtocolUDP, func(ip gopacket.NetworkLayer) []gopacket.SerializableLayer {
		datagram := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
		_ = datagram.SetNetworkLayerForChecksum(ip)
		return []gopacket.SerializableLayer{datagram}
	})
}

// ping creates an echo request with a random identifier.
func (a attacker) ping(src, dst netip.Addr) []byte {
	if src.Is4() {
		return a.packet(src, dst, layers.IPProtocolICMPv4, func(gopacket.NetworkLayer) []gopacket.SerializableLayer {
			return []gopacket.SerializableLayer{&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: a.port()}}
		})
	}
	return a.packet(src, dst, layers.IPProtocolICMPv6, func(ip gopacket.NetworkLayer) []gopacket.SerializableLayer {
		message := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeEchoRequest, 0)}
		_ = message.SetNetworkLayerForChecksum(ip)
		return []gopacket.SerializableLayer{message, &layers.ICMPv6Echo{Identifier: a.port()}}
	})
}

func (a attacker) packet(src, dst netip.Addr, protocol layers.IPProtocol, rest func(gopacket.NetworkLayer) []gopacket.SerializableLayer) []byte {
	if src.Is4() {
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: protocol, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
		return frame(a.t, append([]gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: a.source, DstMAC: a.via, EthernetType: layers.EthernetTypeIPv4}, ip}, rest(ip)...)...)
	}
	ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: protocol, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
	return frame(a.t, append([]gopacket.SerializableLayer{&layers.Ethernet{SrcMAC: a.source, DstMAC: a.via, EthernetType: layers.EthernetTypeIPv6}, ip}, rest(ip)...)...)
}

// macOf returns the link address of the uplink at one of its ends.
func macOf(t *testing.T, at nodekit.NetNS) (mac net.HardwareAddr) {
	t.Helper()
	if err := at.Do(func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = link.HardwareAddr
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return mac
}
