package node_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
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

// A host outside and a pod attack the node in all ways at once, and the other pods lose nothing: not what they send each other, and not the connections
// that they begin with a host outside. The soak has 50 pods, and takes ten minutes.
func TestPrivilegedHostile_HostAndPodDisturbNobody(t *testing.T) {
	t.Parallel()
	options := roomy()
	if !soaks() { // tables that the attacks would fill in seconds
		options.AgentArgs = []string{"--bpf-nat-global-max=4096", "--bpf-ct-global-tcp-max=4096"}
	}
	node := startNode(t, options)
	if err := node.RouteFromOutside("10.244.0.0/16", "fd00:10:244:1::/64"); err != nil {
		t.Fatal(err)
	}
	pods, length := 6, 5*time.Second
	if soaks() { // in a soak of any length, for the attacks hold the machine's load generator until they end
		pods, length = 50, 10*time.Minute
	}
	paths := ring(t, node, pods)
	attacks := attacksOn(t, node, addPod(t, node, "hostile"), paths)
	l := load.StartFor(t, gentle(), paths, nil)

	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	var floods sync.WaitGroup
	for _, a := range attacks {
		floods.Go(func() {
			const perSecond = 1000
			sent, err := nodekit.Flood(ctx, a.from, "eth0", perSecond, a.frames)
			if err != nil {
				t.Errorf("%s: %v", a.name, err)
			}
			if sent < perSecond {
				t.Errorf("%s: %d packets alone were sent", a.name, sent)
			}
		})
	}
	floods.Wait()
	for _, name := range []string{bpf.MapCtNew4, bpf.MapCtNew6} {
		if n, _ := spoofedFlows(t, ctMap(t, node, name)); n < 100 {
			t.Errorf("%s has %d entries of spoofed connections: the attacks do not reach the pods", name, n)
		}
	}
	lostNothing(t, l)
}

// ring makes pods of which each talks to the next one, and every third to the host outside.
func ring(t *testing.T, node *nodekit.Node, count int) (paths []load.Path) {
	t.Helper()
	var pods []*nodekit.Pod
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
	return paths
}

// A host outside begins connections from addresses that are not its own, to ports on which pods listen. The pods answer, and the connections stay half
// open: none gets into the table of the established flows, and connections of others go on and are begun, also to the pods under attack.
func TestPrivilegedHostile_HalfOpenConnectionsAreNotEstablished(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{AgentArgs: []string{"--bpf-ct-global-tcp-max=4096"}})
	routeBack(t, node)
	client, honest := addPod(t, node, "client"), addPod(t, node, "honest")
	var victims []*nodekit.Pod
	for i := range 4 { // the shares of four endpoints are the whole table
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
			ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
			defer stop()
			flooded := make(chan error, 1)
			go func() {
				_, err := nodekit.Flood(ctx, node.OutsideHost(), "eth0", 4000, frames)
				flooded <- err
			}()
			for begun := 0; ctx.Err() == nil; begun++ {
				time.Sleep(callEvery) // all connections of the client together stay far below its own share
				conn, err := talk("tcp", client, servers[begun%len(servers)])
				if err != nil {
					t.Errorf("connection %d: %v", begun, err)
					continue
				}
				if err := errors.Join(exchange(standing), conn.Close()); err != nil {
					t.Errorf("the connection that stood: %v", err)
				}
			}
			if err := <-flooded; err != nil {
				t.Fatal(err)
			}
			established, begun := []string{bpf.MapCtEst4}, []string{bpf.MapCtNew4, bpf.MapCtBurst4}
			if f.ipv6 {
				established, begun = []string{bpf.MapCtEst6}, []string{bpf.MapCtNew6, bpf.MapCtBurst6}
			}
			for _, name := range established {
				if n, _ := spoofedFlows(t, ctMap(t, node, name)); n != 0 {
					t.Errorf("%s has %d entries of connections that are half open", name, n)
				}
			}
			var answered int
			for _, name := range begun {
				_, n := spoofedFlows(t, ctMap(t, node, name))
				answered += n
			}
			if answered < 100 {
				t.Errorf("the pods have answered %d of the connections that there are: the attack does not reach them", answered)
			}
		})
	}
}

// ctKeyRest is the length of a key of a map of flows without its two addresses.
const ctKeyRest = 8

// Spoofed sources of the host outside.
var spoofed = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("2001:db8:ff00::/40")}

// spoofedFlows counts the entries of a map of flows with a spoofed address, and those of them that were answered.
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
	// A table that changes may end the walk early: then these are entries of a part of it.
	if err := all.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		t.Fatal(err)
	}
	return n, answered
}

// attack is what one place sends all the time.
type attack struct {
	name   string
	from   nodekit.Place
	frames [][]byte
}

// attacker makes frames with random parts.
type attacker struct {
	t           *testing.T
	random      *rand.Rand
	source, via net.HardwareAddr
}

// hostOutside attacks the node.
func hostOutside(t *testing.T, node *nodekit.Node) attacker {
	t.Helper()
	return attacker{t, testseed.New(t), macOf(t, node.OutsideHost()), macOf(t, node.Host())}
}

// attacksOn are those of the host outside and of a pod.
func attacksOn(t *testing.T, node *nodekit.Node, hostile *nodekit.Pod, paths []load.Path) (all []attack) {
	t.Helper()
	e := endsOf(t, hostile)
	host := hostOutside(t, node)
	pod := attacker{t, host.random, e.pod, e.peer}
	for _, f := range families {
		uplink, target := node.UplinkAddr(f.ipv6), paths[0].Addr
		for _, p := range paths {
			if p.To != node.OutsideHost() && p.Addr.Is6() == f.ipv6 {
				target = p.Addr
			}
		}
		own, gateway := hostile.Addr(f.ipv6), hostile.Gateway(f.ipv6)
		all = append(all,
			attack{"the host pings the node " + f.name, node.OutsideHost(), many(func() []byte { return host.ping(host.spoof(f.ipv6), uplink) })},
			attack{"the host begins connections as others " + f.name, node.OutsideHost(), many(func() []byte {
				return host.tcp(host.from(host.spoof(f.ipv6)), host.from(target), &layers.TCP{SYN: true})
			})},
			attack{"the host resets ports " + f.name, node.OutsideHost(), many(func() []byte {
				return host.tcp(host.from(outsideAddr(f.ipv6)), host.from(target), &layers.TCP{RST: true})
			})},
			attack{"the pod begins flows " + f.name, hostile, many(func() []byte { return pod.tcp(pod.from(own), pod.from(outsideAddr(f.ipv6)), &layers.TCP{SYN: true}) })},
			attack{"the pod pings the node " + f.name, hostile, many(func() []byte { return pod.ping(own, gateway) })})
	}
	return all
}

// many makes different frames, of which each is sent again after the last.
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

// from is a random port of an address.
func (a attacker) from(addr netip.Addr) netip.AddrPort { return netip.AddrPortFrom(addr, a.port()) }

// tcp makes a segment with random numbers.
func (a attacker) tcp(src, dst netip.AddrPort, segment *layers.TCP) []byte {
	segment.SrcPort, segment.DstPort = layers.TCPPort(src.Port()), layers.TCPPort(dst.Port())
	segment.Seq, segment.Window = a.random.Uint32(), 1000
	return a.packet(src.Addr(), dst.Addr(), layers.IPProtocolTCP, func(ip gopacket.NetworkLayer) []gopacket.SerializableLayer {
		_ = segment.SetNetworkLayerForChecksum(ip)
		return []gopacket.SerializableLayer{segment}
	})
}

// datagram makes a datagram.
func (a attacker) datagram(src, dst netip.AddrPort) []byte {
	return a.packet(src.Addr(), dst.Addr(), layers.IPProtocolUDP, func(ip gopacket.NetworkLayer) []gopacket.SerializableLayer {
		datagram := &layers.UDP{SrcPort: layers.UDPPort(src.Port()), DstPort: layers.UDPPort(dst.Port())}
		_ = datagram.SetNetworkLayerForChecksum(ip)
		return []gopacket.SerializableLayer{datagram}
	})
}

// ping makes an echo request with a random identifier.
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

// macOf is the link address of the uplink at one of its ends.
func macOf(t *testing.T, at nodekit.Place) (mac net.HardwareAddr) {
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
