package loadbalancer_test

import (
	"bytes"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waggle-net/waggle/pkg/loadbalancer"
	"github.com/waggle-net/waggle/pkg/testseed"
)

// TestAddressKey_OrderOfAddresses compares the order of keys with the order of the addresses in their 16-byte form, then of ports and protocols.
func TestAddressKey_OrderOfAddresses(t *testing.T) {
	t.Parallel()
	random := testseed.New(t)
	addrs := []netip.Addr{netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("255.255.255.255"), netip.IPv6Unspecified(), netip.IPv6Loopback(),
		netip.MustParseAddr("::fffe:ffff:ffff"), netip.MustParseAddr("::1:0:0:0"), netip.MustParseAddr("ffff::")}
	for range 50 {
		var b [16]byte
		for i := range b {
			b[i] = byte(random.IntN(math.MaxUint8 + 1))
		}
		addrs = append(addrs, netip.AddrFrom16(b), netip.AddrFrom4([4]byte(b[:4])))
	}
	var list []loadbalancer.Address
	for _, addr := range addrs {
		for _, protocol := range []loadbalancer.Protocol{loadbalancer.TCP, loadbalancer.UDP} {
			list = append(list, loadbalancer.Address{Addr: addr, Port: uint16(random.IntN(math.MaxUint16 + 1)), Protocol: protocol})
		}
	}
	former := func(a loadbalancer.Address) []byte {
		b := a.Addr.As16()
		return append(b[:], byte(a.Port>>8), byte(a.Port), byte(a.Protocol))
	}
	want := slices.SortedFunc(slices.Values(list), func(a, b loadbalancer.Address) int { return bytes.Compare(former(a), former(b)) })
	have := slices.SortedFunc(slices.Values(list), func(a, b loadbalancer.Address) int { return bytes.Compare(a.Key(), b.Key()) })
	require.Equal(t, want, have)
	web := loadbalancer.Address{Addr: netip.MustParseAddr("10.0.0.1"), Port: 80, Protocol: loadbalancer.TCP}
	require.Len(t, web.Key(), 8)
	mapped := web
	mapped.Addr = netip.AddrFrom16(web.Addr.As16())
	require.Equal(t, web.Key(), mapped.Key())
}
