package endpointmanager

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/testnet"
)

func TestPrivilegedLinks_AreThoseOfTheNamespace(t *testing.T) {
	var index int
	var found links
	testnet.New(t).Do(func() {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lxc0123456789ab"}, PeerName: "peer"}
		if err := netlink.LinkAdd(link); err != nil {
			t.Errorf("add a link: %v", err)
			return
		}
		made, err := netlink.LinkByName(link.Name)
		if err != nil {
			t.Error(err)
			return
		}
		index = made.Attrs().Index
		if found, err = (realKernel{}).links(); err != nil {
			t.Error(err)
		}
	})
	require.Equal(t, "lxc0123456789ab", found[index].name)
	require.False(t, found[index].mac.IsZero())
	require.NotContains(t, found, 1, "lo is no veth")
}
