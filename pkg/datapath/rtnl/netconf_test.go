package rtnl

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// The kernel announces the settings that a process changes, and new and renamed links.
func TestPrivilegedSettings_ReportForwardingAndRPFilter(t *testing.T) {
	t.Parallel()
	testnet.New(t).Do(func() {
		settings, err := OpenSettings()
		if err != nil {
			t.Error(err)
			return
		}
		defer settings.Close()
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "one"}, PeerName: "other"}); err != nil {
			t.Error(err)
			return
		}
		await := func(want Setting) {
			for {
				all, err := settings.Next(t.Context())
				if err != nil {
					t.Errorf("%v; want %+v", err, want)
				}
				if err != nil || slices.Contains(all, want) {
					return
				}
			}
		}
		await(Setting{Name: "net/ipv6/conf/one", All: true})
		for _, tc := range []struct {
			name string
			old  string // written first, so that the next write changes the value
			want Setting
		}{
			{"net/ipv4/conf/one/rp_filter", "0", Setting{Name: "net/ipv4/conf/one/rp_filter", Value: 2}},
			{"net/ipv4/conf/one/forwarding", "0", Setting{Name: "net/ipv4/conf/one/forwarding", Value: 1}},
			{"net/ipv4/ip_forward", "0", Setting{Name: "net/ipv4/ip_forward", Value: 1}},
			{"net/ipv6/conf/other/forwarding", "0", Setting{Name: "net/ipv6/conf/other/forwarding", Value: 1}},
		} {
			path := "/proc/sys/" + tc.name
			if err := errors.Join(os.WriteFile(path, []byte(tc.old), 0), os.WriteFile(path, []byte(tc.want.String()), 0)); err != nil {
				t.Error(err)
				return
			}
			await(tc.want)
		}
		link, err := netlink.LinkByName("other")
		if err := errors.Join(err, netlink.LinkSetName(link, "renamed")); err != nil {
			t.Error(err)
			return
		}
		await(Setting{Name: "net/ipv4/conf/renamed", All: true})
	})
}

// Parsing never reads beyond the end of a message.
func FuzzParseNetconf(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 8, 0, 1, 0, 3, 0, 0, 0, 8, 0, 3, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, m []byte) {
		if c, ok := parseNetconf(m); ok && c.setting != netconfForwarding && c.setting != netconfRPFilter && c.setting != 0 {
			t.Errorf("setting %d is not one of those that are announced", c.setting)
		}
	})
}
