package rtnl

import (
	"errors"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/testnet"
)

// The kernel names what somebody changes, and says nothing of a link that comes.
func TestPrivilegedSettings_TellOfForwardingAndReversePathFilter(t *testing.T) {
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
		for _, tc := range []struct {
			name string
			old  string // what makes the value another one first
			want Setting
		}{
			{"net/ipv4/conf/one/rp_filter", "0", Setting{"net/ipv4/conf/one/rp_filter", 2}},
			{"net/ipv4/conf/one/forwarding", "0", Setting{"net/ipv4/conf/one/forwarding", 1}},
			{"net/ipv4/ip_forward", "0", Setting{"net/ipv4/ip_forward", 1}},
			{"net/ipv6/conf/other/forwarding", "0", Setting{"net/ipv6/conf/other/forwarding", 1}},
		} {
			path := "/proc/sys/" + tc.name
			if err := errors.Join(os.WriteFile(path, []byte(tc.old), 0), os.WriteFile(path, []byte(tc.want.String()), 0)); err != nil {
				t.Error(err)
				return
			}
			for found := false; !found; {
				all, err := settings.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				for _, s := range all {
					found = found || s == tc.want
				}
			}
		}
	})
}

// Whatever comes over the socket, nothing is read beyond its end.
func FuzzParseNetconf(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 8, 0, 1, 0, 3, 0, 0, 0, 8, 0, 3, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, m []byte) {
		if c, ok := parseNetconf(m); ok && c.setting != netconfForwarding && c.setting != netconfRPFilter {
			t.Errorf("setting %d is not one of those that are announced", c.setting)
		}
	})
}
