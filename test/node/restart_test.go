package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// While the agent stops, is away, and comes back with a new generation of its programs, no packet is lost: not between
// pods, not from the node to a pod, not from a pod to the node.
func TestPrivilegedRestart_LosesNoPacket(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	var streams []*stream
	for _, family := range families {
		streams = append(streams,
			startStream(t, "pod to pod "+family.name, a, b, b.Addr(family.ipv6)),
			startStream(t, "node to pod "+family.name, node.Host(), a, a.Addr(family.ipv6)),
			startStream(t, "pod to node "+family.name, a, node.Host(), a.Gateway(family.ipv6)))
	}
	for _, end := range []func(context.Context) error{node.StopAgent, node.KillAgent} {
		if err := errors.Join(end(t.Context()), node.StartAgent()); err != nil {
			t.Fatal(err)
		}
		waitReady(t, node)
	}
	for _, s := range streams {
		s.end(t)
	}
}

// stream sends a datagram every few milliseconds, and counts them at both ends.
type stream struct {
	name           string
	sent, received atomic.Int64
	server, client net.Conn
	stop, done     chan struct{}
}

const streamPause = 3 * time.Millisecond // six streams: about 2,000 packets a second

func startStream(t *testing.T, name string, from, to nodekit.Place, addr netip.Addr) *stream {
	t.Helper()
	s := &stream{name: name, stop: make(chan struct{}), done: make(chan struct{})}
	var server *net.UDPConn
	if err := to.Do(func() (err error) {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	s.server = server
	if err := from.Do(func() (err error) { s.client, err = net.Dial("udp", server.LocalAddr().String()); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.client.Close(); _ = s.server.Close() })
	go func() {
		for buffer := make([]byte, 64); ; {
			if _, err := server.Read(buffer); err != nil {
				return
			}
			s.received.Add(1)
		}
	}()
	go func() {
		defer close(s.done)
		for ticker := time.NewTicker(streamPause); ; {
			select {
			case <-s.stop:
				ticker.Stop()
				return
			case <-ticker.C:
			}
			if _, err := s.client.Write([]byte("waggle")); err == nil {
				s.sent.Add(1)
			}
		}
	}()
	return s
}

func (s *stream) end(t *testing.T) {
	t.Helper()
	eventually(t, func() error { // a restart may be over before much is sent
		if sent := s.sent.Load(); sent < 100 {
			return fmt.Errorf("%s: only %d packets were sent", s.name, sent)
		}
		return nil
	})
	close(s.stop)
	<-s.done
	eventually(t, func() error {
		if sent, received := s.sent.Load(), s.received.Load(); sent != received {
			return fmt.Errorf("%s: %d packets were sent, %d received", s.name, sent, received)
		}
		return nil
	})
}

// The agent mounts bpffs where it is missing, finds it after a restart, and pins below it.
func TestPrivilegedBPFRoot_IsMountedWhenItMustBe(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	for range 2 {
		if err := node.Do(func() error {
			var fs unix.Statfs_t
			if err := unix.Statfs(node.BPFRoot(), &fs); err != nil {
				return err
			}
			if fs.Type != unix.BPF_FS_MAGIC {
				return fmt.Errorf("%s is of type %#x", node.BPFRoot(), fs.Type)
			}
			pins, err := os.ReadDir(filepath.Join(node.BPFRoot(), "waggle", "maps"))
			if err == nil && len(pins) == 0 {
				err = errors.New("nothing is pinned")
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(node.StopAgent(t.Context()), node.StartAgent()); err != nil {
			t.Fatal(err)
		}
		waitReady(t, node)
	}
	if mounts := bpfMounts(t, node); mounts != 1 {
		t.Errorf("%d file systems are mounted there, want 1", mounts)
	}
}

// bpfMounts counts what is mounted at the node's root of pins, one above the other.
func bpfMounts(t *testing.T, node *nodekit.Node) (count int) {
	t.Helper()
	if err := node.Do(func() error {
		for {
			if err := unix.Unmount(node.BPFRoot(), unix.MNT_DETACH); err != nil {
				return nil
			}
			count++
		}
	}); err != nil {
		t.Fatal(err)
	}
	return count
}
