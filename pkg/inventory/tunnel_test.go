package inventory

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/testnet"
)

// TestPrivilegedTunnel_OnlyOwnDevice checks that name, kind and group together identify Waggle's device.
func TestPrivilegedTunnel_OnlyOwnDevice(t *testing.T) {
	t.Parallel()
	named := netlink.LinkAttrs{Name: podlink.OverlayDevice}
	grouped := netlink.LinkAttrs{Name: podlink.OverlayDevice, Group: podlink.OverlayGroup}
	for name, c := range map[string]struct {
		link netlink.Link
		ours bool
	}{
		"ours":          {&netlink.Vxlan{LinkAttrs: grouped, FlowBased: true, Port: 8472}, true},
		"another group": {&netlink.Vxlan{LinkAttrs: named, FlowBased: true, Port: 8472}, false},
		"with a VNI":    {&netlink.Vxlan{LinkAttrs: grouped, VxlanId: 7, Port: 8472}, false},
		"a bridge":      {&netlink.Bridge{LinkAttrs: grouped}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testnet.New(t).Do(func() {
				if err := netlink.LinkAdd(c.link); err != nil {
					t.Error(err)
					return
				}
				m, err := Open(Paths{})
				if err != nil {
					t.Error(err)
					return
				}
				defer m.Close()
				found, err := m.tunnel()
				if err != nil || (len(found) == 1) != c.ours {
					t.Errorf("found %v, %v", found, err)
				}
				for _, o := range found {
					if err := o.remove(); err != nil {
						t.Error(err)
					}
				}
				_, err = netlink.LinkByName(podlink.OverlayDevice)
				if gone := errors.As(err, new(netlink.LinkNotFoundError)); gone != c.ours {
					t.Errorf("afterwards: %v", err)
				}
			})
		})
	}
}
