package endpointmanager

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/testnet"
)

func TestPrivilegedLinks_AreThoseOfTheNamespace(t *testing.T) {
	var index int
	var names map[int]string
	testnet.New(t).Do(func() {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lxc0123456789ab"}, PeerName: "peer"}
		if err := netlink.LinkAdd(link); err != nil {
			t.Errorf("add a link: %v", err)
			return
		}
		found, err := netlink.LinkByName(link.Name)
		if err != nil {
			t.Error(err)
			return
		}
		index = found.Attrs().Index
		if names, err = newKernel().links(); err != nil {
			t.Error(err)
		}
	})
	require.Equal(t, "lxc0123456789ab", names[index])
	require.Equal(t, "lo", names[1])
}
