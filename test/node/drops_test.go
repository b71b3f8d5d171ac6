package node_test

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/test/nodekit"
)

var (
	allNodes    = netip.MustParseAddr("ff02::1")
	foreignLink = netip.MustParseAddr("fe80::bad")
	foreignMAC  = net.HardwareAddr{2, 0xba, 0xd, 0xba, 0xd, 1}
)

// lie is a spoofed or malformed frame that no pod may send.
type lie struct {
	name   string
	frame  []byte
	code   uint8 // reason number of Cilium or of Waggle
	reason string
}

func lies(t *testing.T, a, b ends) []lie {
	foreign4, foreign6 := netip.MustParseAddr("10.244.1.250"), netip.MustParseAddr("fd00:10:244:1::bad")
	return []lie{
		{"IPv4 source", udp(t, a.pod, a.peer, foreign4, b.ipv4, 64), 132, "Invalid source ip"},
		{"IPv6 source", udp(t, a.pod, a.peer, foreign6, b.ipv6, 64), 132, "Invalid source ip"},
		{"IPv4 source of another pod", udp(t, a.pod, a.peer, b.ipv4, a.gw4, 64), 132, "Invalid source ip"},
		{"IPv4 source of the node", udp(t, a.pod, a.peer, a.gw4, b.ipv4, 64), 132, "Invalid source ip"},
		{"IPv6 link-local source", udp(t, a.pod, a.peer, foreignLink, a.gw6, 64), 132, "Invalid source ip"},
		{"MAC source, IPv4", udp(t, foreignMAC, a.peer, a.ipv4, b.ipv4, 64), 130, "Invalid source mac"},
		{"MAC source, IPv6", udp(t, b.pod, a.peer, a.ipv6, b.ipv6, 64), 130, "Invalid source mac"},
		{"MAC target", udp(t, a.pod, foreignMAC, a.ipv4, b.ipv4, 64), 131, "Invalid destination mac"},
		{"ARP sender address", arp(t, a.pod, a.pod, b.ipv4, a.gw4), 132, "Invalid source ip"},
		{"ARP sender MAC", arp(t, a.pod, foreignMAC, a.ipv4, a.gw4), 130, "Invalid source mac"},
		{"ARP target", arp(t, a.pod, a.pod, a.ipv4, b.ipv4), 242, ""},
		{"ND source", icmp6(t, a.pod, group(allNodes), b.ipv6, allNodes, 135,
			&layers.ICMPv6NeighborSolicitation{TargetAddress: a.gw6.AsSlice()}), 132, "Invalid source ip"},
		{"ND target", icmp6(t, a.pod, group(allNodes), a.ipv6, allNodes, 135,
			&layers.ICMPv6NeighborSolicitation{TargetAddress: b.ipv6.AsSlice()}), 242, ""},
		{"router advertisement", icmp6(t, a.pod, group(allNodes), foreignLink, allNodes, 134,
			&layers.ICMPv6RouterAdvertisement{HopLimit: 64, RouterLifetime: 1800}), 176, "Forbidden ICMPv6 message"},
		{"redirect", icmp6(t, a.pod, a.peer, foreignLink, a.gw6, 137, &layers.ICMPv6Redirect{
			TargetAddress: b.ipv6.AsSlice(), DestinationAddress: b.ipv6.AsSlice()}), 176, "Forbidden ICMPv6 message"},
		{"IPv4 multicast", udp(t, a.pod, net.HardwareAddr{1, 0, 0x5e, 0, 0, 0xfb}, a.ipv4, netip.MustParseAddr("224.0.0.251"), 1), 240, ""},
		{"IPv6 multicast", udp(t, a.pod, group(allNodes), a.ipv6, allNodes, 1), 240, ""},
		{"VLAN", tagged(udp(t, a.pod, a.peer, a.ipv4, b.ipv4, 64)), 182, "VLAN"},
		{"protocol", frame(t, &layers.Ethernet{SrcMAC: a.pod, DstMAC: a.peer, EthernetType: 0x88cc}, gopacket.Payload(make([]byte, 46))),
			139, "Unsupported L3 protocol"},
	}
}

// tagged puts a frame into VLAN 7.
func tagged(b []byte) []byte { return slices.Concat(b[:12], []byte{0x81, 0, 0, 7}, b[12:]) }

// observed returns the frame as programs see it: the kernel keeps a VLAN tag beside the packet.
func (l lie) observed() []byte {
	if binary.BigEndian.Uint16(l.frame[12:]) == uint16(layers.EthernetTypeDot1Q) {
		return slices.Concat(l.frame[:12], l.frame[16:])
	}
	return l.frame
}

// Every such frame is dropped, appears in the table of drops, in the monitor and on its socket, and is counted by reason and direction.
func TestPrivilegedDrops_ForgedFrames_ReportedEverywhere(t *testing.T) {
	t.Parallel()
	node := startNode(t, withMetrics())
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	from, to := endsOf(t, a), endsOf(t, b)
	raw := listenRaw(t, node)
	printed := streamMonitor(t, node)
	id, ifindex := endpointID(t, node, "default/a"), ifindexOf(t, node, from.host)

	for _, lie := range lies(t, from, to) {
		t.Run(lie.name, func(t *testing.T) {
			before, err := scrape(node)
			if err != nil {
				t.Fatal(err)
			}
			frames, err := nodekit.Capture(b, "eth0", func() error { return nodekit.SendFrame(a, "eth0", lie.frame) })
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range frames {
				if bytes.Contains(f, lie.frame[14:]) {
					t.Errorf("it reached the other pod: %x", f)
				}
			}
			requireDropEvent(t, raw.await(t, lie.observed()), lie, id, ifindex)
			reason := printed.await(t, lie.code, id, len(lie.observed()))
			if !strings.Contains(reason, lie.reason) {
				t.Errorf("monitor says %q, want %q", reason, lie.reason)
			}
			eventually(t, func() error {
				text, err := node.Waggle(t.Context(), "drops")
				if err == nil && !strings.Contains(text, reason) {
					err = fmt.Errorf("waggle drops does not show %q:\n%s", reason, text)
				}
				return err
			})
			after, err := scrape(node)
			if err != nil {
				t.Fatal(err)
			}
			series := fmt.Sprintf(`waggle_datapath_packets_total{direction="egress",reason=%q}`, reason)
			if after[series] != before[series]+1 {
				t.Errorf("%s went from %v to %v", series, before[series], after[series])
			}
		})
	}
	if err := nodekit.Ping(a, b.Addr(false), 56); err != nil {
		t.Errorf("an honest packet: %v", err)
	}
}

// requireDropEvent decodes a record by the offsets that Cilium documents for its drop notification, version 1, without any code of Waggle.
func requireDropEvent(t *testing.T, record []byte, lie lie, id, ifindex uint32) {
	t.Helper()
	const packetOffset = 36
	frame := lie.observed()
	if len(record) < packetOffset {
		t.Fatalf("the record has %d bytes", len(record))
	}
	u16 := func(at int) uint32 { return uint32(binary.NativeEndian.Uint16(record[at:])) }
	u32 := func(at int) uint32 { return binary.NativeEndian.Uint32(record[at:]) }
	captured := min(len(frame), 128)
	for _, field := range []struct {
		name      string
		got, want uint32
	}{
		{"type @0", uint32(record[0]), 1},
		{"subtype @1", uint32(record[1]), uint32(lie.code)},
		{"source @2", u16(2), id},
		{"len_orig @8", u32(8), uint32(len(frame))},
		{"len_cap @12", u16(12), uint32(captured)},
		{"version @14", u16(14), 1},
		{"src_label @16", u32(16), 5}, // reserved:init
		{"dst_label @20", u32(20), 0},
		{"dst_id @24", u32(24), 0}, // egress
		{"ext_error @31", uint32(record[31]), 0},
		{"ifindex @32", u32(32), ifindex},
	} {
		if field.got != field.want {
			t.Errorf("%s is %d, want %d", field.name, field.got, field.want)
		}
	}
	if u16(28) == 0 || record[30] < 200 { // numbers below 200 belong to Cilium's own files
		t.Errorf("line @28 is %d, file @30 is %d", u16(28), record[30])
	}
	if got := record[packetOffset:]; !bytes.HasPrefix(got, frame[:captured]) {
		t.Errorf("the packet behind the event is\n%x, want\n%x", got, frame[:captured])
	}
}

// rawEvents is a listener on the monitor socket, written like a third-party program.
type rawEvents struct {
	mu      sync.Mutex
	records [][]byte
}

func listenRaw(t *testing.T, node *nodekit.Node) *rawEvents {
	t.Helper()
	conn, err := net.Dial("unix", filepath.Join(node.StateDir(), "monitor1_2.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r := &rawEvents{}
	go func() {
		decoder := gob.NewDecoder(conn)
		for {
			var payload struct {
				Data []byte
				CPU  int
				Lost uint64
				Type int
			}
			if decoder.Decode(&payload) != nil {
				return
			}
			if payload.Type == 9 {
				r.mu.Lock()
				r.records = append(r.records, payload.Data)
				r.mu.Unlock()
			}
		}
	}()
	return r
}

// await returns the record of a packet.
func (r *rawEvents) await(t *testing.T, frame []byte) (record []byte) {
	t.Helper()
	eventually(t, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		at := slices.IndexFunc(r.records, func(b []byte) bool { return bytes.Contains(b, frame[:min(len(frame), 128)]) })
		if at < 0 {
			return fmt.Errorf("none of %d records from the socket holds the packet", len(r.records))
		}
		record = r.records[at]
		return nil
	})
	return record
}

// printedEvents is the output of `waggle monitor -o json`, one event a line.
type printedEvents struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (p *printedEvents) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func streamMonitor(t *testing.T, node *nodekit.Node) *printedEvents {
	t.Helper()
	p := &printedEvents{}
	stop, err := node.StreamWaggle(p, "monitor", "-o", "json", "-t", "drop")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	// The monitor does not report when it is connected, and it does not repeat earlier events. So probes are sent until the first event arrives.
	eventually(t, func() error {
		pod := addPod(t, node, fmt.Sprintf("prober-%d", time.Now().UnixNano()))
		defer func() { _ = pod.Detach(t.Context()) }()
		e := endsOf(t, pod)
		if err := nodekit.SendFrame(pod, "eth0", udp(t, foreignMAC, e.peer, e.ipv4, e.gw4, 64)); err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.text.Len() == 0 {
			return fmt.Errorf("monitor prints nothing")
		}
		return nil
	})
	return p
}

// await returns the reason of an event with the given properties.
func (p *printedEvents) await(t *testing.T, code uint8, id uint32, length int) (reason string) {
	t.Helper()
	eventually(t, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		for line := range strings.Lines(p.text.String()) {
			var e struct {
				Time, Type, Reason, Direction string
				ReasonCode                    uint8
				Endpoint, Length              uint32
			}
			if !strings.HasSuffix(line, "\n") || json.Unmarshal([]byte(line), &e) != nil {
				continue // the line is incomplete so far
			}
			if e.Type == "drop" && e.ReasonCode == code && e.Endpoint == id && e.Length == uint32(length) &&
				e.Direction == "egress" && e.Time != "" {
				reason = e.Reason
				return nil
			}
		}
		return fmt.Errorf("no drop with code %d of endpoint %d and %d bytes in:\n%s", code, id, length, p.text.String())
	})
	return reason
}

// endpointID returns the endpoint ID of a pod.
func endpointID(t *testing.T, node *nodekit.Node, pod string) uint32 {
	t.Helper()
	text, err := node.Waggle(t.Context(), "endpoint", "get", "pod-name:"+pod, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var one struct{ ID uint32 }
	var list []struct{ ID uint32 }
	if json.Unmarshal([]byte(text), &list) == nil && len(list) == 1 {
		return list[0].ID
	}
	if err := json.Unmarshal([]byte(text), &one); err != nil || one.ID == 0 {
		t.Fatalf("endpoint of %s: %v in %s", pod, err, text)
	}
	return one.ID
}

func ifindexOf(t *testing.T, node *nodekit.Node, name string) (index uint32) {
	t.Helper()
	if err := node.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err == nil {
			index = uint32(link.Attrs().Index)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return index
}
