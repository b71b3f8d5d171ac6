package deviceobserver

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// An IPv6 address is tentative during duplicate address detection, and stays tentative if another host has it.
func TestAddressRow_TentativeAndDuplicate(t *testing.T) {
	t.Parallel()
	for flags, want := range map[int]devices.Address{
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

// Devices of these types send packets without a link header (dev_is_mac_header_xmit in include/linux/if_arp.h).
func TestDeviceRow_LinkHeader(t *testing.T) {
	t.Parallel()
	const gre6 = 823 // ARPHRD_IP6GRE, which package unix does not define
	for kind, want := range map[uint16]bool{
		unix.ARPHRD_ETHER: false, unix.ARPHRD_LOOPBACK: false, unix.ARPHRD_INFINIBAND: false, unix.ARPHRD_IEEE80211: false,
		unix.ARPHRD_NONE: true, unix.ARPHRD_TUNNEL: true, unix.ARPHRD_TUNNEL6: true, unix.ARPHRD_SIT: true, unix.ARPHRD_IPGRE: true, gre6: true,
		unix.ARPHRD_PPP: true, unix.ARPHRD_RAWIP: true,
	} {
		message := nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Type: kind}}
		link := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "eth0", EncapType: message.EncapType()}}
		if got := deviceRow(link).L3; got != want {
			t.Errorf("a device of type %d (%s): without a link header is %v, want %v", kind, message.EncapType(), got, want)
		}
	}
}
