package devices

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	tables "github.com/waggle-net/waggle/pkg/tables/devices"
)

// An IPv6 address is tentative while the kernel looks whether somebody else has it, and stays so when somebody has.
func TestAddressRow_TentativeAndDuplicate(t *testing.T) {
	t.Parallel()
	for flags, want := range map[int]tables.Address{
		unix.IFA_F_PERMANENT:                                               {},
		unix.IFA_F_PERMANENT | unix.IFA_F_TENTATIVE:                        {Tentative: true},
		unix.IFA_F_PERMANENT | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED: {Tentative: true, Duplicate: true},
	} {
		want.LinkIndex, want.Prefix = 2, netip.MustParsePrefix("2001:db8::5/64")
		if got := addressRow(netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP("2001:db8::5"), Mask: net.CIDRMask(64, 128)}, LinkIndex: 2,
			Flags: flags}); got != want {
			t.Errorf("flags %#x: %+v, want %+v", flags, got, want)
		}
	}
}
