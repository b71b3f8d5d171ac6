package node_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// The node loses the masquerade address of its pods and gets another one. A UDP socket of a pod uses the new address from its next datagram on. A TCP
// connection, which cannot change its address, is reset with its next packet, so no client waits for replies to the lost address.
func TestPrivilegedMasquerade_AddressRemovedFromNode(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	pod := addPod(t, node, "one")
	serveName(t, node.OutsideHost(), "outside", 9000)
	for _, f := range families {
		was, is := nodekit.UplinkIPv4, netip.MustParsePrefix("192.0.2.77/32")
		if f.ipv6 {
			was, is = nodekit.UplinkIPv6, netip.MustParsePrefix("2001:db8:2::77/64")
		}
		server := netip.AddrPortFrom(outsideAddr(f.ipv6), 9000)
		datagrams, stream := dial(t, pod, "udp", server), converse(t, "tcp", pod, node.OutsideHost(), outsideAddr(f.ipv6))
		defer stream.close()
		if err := checkSource(answerTimeout, datagrams, was.Addr()); err != nil {
			t.Fatal(err)
		}
		if err := node.Do(func() error {
			err := errors.Join(addAddr("eth0", is), delAddr("eth0", was))
			if !f.ipv6 {
				err = errors.Join(err, defaultRoute("eth0"))
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error { return checkSource(time.Second, datagrams, is.Addr()) })
		eventually(t, func() error {
			if err := exchangeWithin(noReplyTimeout, stream); !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
				return fmt.Errorf("the connection under the address that is gone: %w", err)
			}
			return nil
		})
	}
}

// dial opens a socket of a pod.
func dial(t *testing.T, from nodekit.NetNS, network string, to netip.AddrPort) (conn net.Conn) {
	t.Helper()
	if err := from.Do(func() (err error) {
		conn, err = net.Dial(network, to.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// checkSource asks a server for the client address that it sees.
func checkSource(limit time.Duration, conn net.Conn, want netip.Addr) error {
	_ = conn.SetDeadline(time.Now().Add(limit))
	if _, err := conn.Write([]byte("who\n")); err != nil {
		return err
	}
	answer := make([]byte, 100)
	n, err := conn.Read(answer)
	if err != nil {
		return err
	}
	if got := strings.TrimSpace(string(answer[:n])); got != "outside "+want.String() {
		return fmt.Errorf("%q, want %s", got, want)
	}
	return nil
}
