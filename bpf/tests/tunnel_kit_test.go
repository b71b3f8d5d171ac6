package tests

import (
	"errors"
	"os"
	"testing"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// linkKind is the kind of a device towards the outside.
type linkKind int

const (
	ethernet linkKind = iota
	tunnel            // without a link header
)

// nodeLinks are the kinds of a node's devices towards the outside.
type nodeLinks struct{ uplink, backbone linkKind }

var ethernetOnly = nodeLinks{}

// onEachLink runs a test with devices of each kind.
func onEachLink(t *testing.T, test func(t *testing.T, s *surroundings)) {
	t.Helper()
	for name, links := range map[string]nodeLinks{"Ethernet": ethernetOnly, "uplink is a tunnel": {uplink: tunnel}, "backbone is a tunnel": {backbone: tunnel}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newSurroundings(t, links))
		})
	}
}

// addTunnel creates a device towards the outside, and one named eth0 in another namespace.
func (s *surroundings) addTunnel(name string, index int, peer *testnet.Namespace) error {
	near, err := testnet.TUN(name, index)
	if err != nil {
		return err
	}
	var far *os.File
	peer.Do(func() { far, err = testnet.TUN("eth0", 0) })
	if err != nil {
		return errors.Join(err, near.Close())
	}
	leave := testnet.JoinTUNs(near, far)
	s.t.Cleanup(func() { _ = leave() })
	return nil
}
