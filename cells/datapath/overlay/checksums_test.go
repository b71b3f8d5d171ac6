package overlay

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/podlink"
)

// completesChecksums reports whether a device of this namespace has transmit checksum offload.
func completesChecksums(t *testing.T, device string) bool {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{command: unix.ETHTOOL_GTXCSUM}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:], device)
	if _, _, number := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); number != 0 {
		t.Fatal(number)
	}
	return value.data != 0
}

// The pair is created, changed and reused according to the row, and deleted without one.
func TestPrivilegedOps_ChecksumPair(t *testing.T) {
	t.Parallel()
	inNamespace(t, func(k *realKernel) {
		o := newOps(unpublished{k})
		for _, c := range []struct {
			mtu int
			up  bool // requested
			is  bool
		}{{1500, false, false}, {1500, true, true}, {1400, false, true}} { // a pair that is up stays up
			row := wanted()
			row.MTU, row.Checksums, row.ChecksumsUp = c.mtu, true, c.up
			for range 2 {
				if err := o.Update(t.Context(), nil, 0, row); err != nil {
					t.Error(err)
					return
				}
			}
			for _, name := range []string{podlink.ChecksumDevice, podlink.ChecksumPeer} {
				link, err := k.handle.LinkByName(name)
				if err != nil {
					t.Error(err)
					return
				}
				if a := link.Attrs(); a.MTU != c.mtu || a.Group != podlink.OverlayGroup || a.RawFlags&unix.IFF_NOARP == 0 || (a.RawFlags&unix.IFF_UP != 0) != c.is {
					t.Errorf("%s has MTU %d, group %#x, flags %#x; want %+v", name, a.MTU, a.Group, a.RawFlags, c)
				}
			}
			if completesChecksums(t, podlink.ChecksumDevice) {
				t.Errorf("%s leaves checksums to the next device", podlink.ChecksumDevice)
			}
		}
		if err := errors.Join(o.Update(t.Context(), nil, 0, wanted()), o.Update(t.Context(), nil, 0, wanted())); err != nil {
			t.Error(err)
		}
		for _, name := range []string{podlink.ChecksumDevice, podlink.ChecksumPeer} {
			if _, err := k.handle.LinkByName(name); !errors.As(err, new(netlink.LinkNotFoundError)) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// A link with only a name of the pair is neither changed nor deleted.
func TestPrivilegedOps_ForeignDeviceWithPairName(t *testing.T) {
	t.Parallel()
	for name, foreign := range map[string]netlink.Link{
		"a bridge":             &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: podlink.ChecksumDevice}},
		"a pair of other ends": &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: podlink.ChecksumDevice}, PeerName: "other"},
		"an end of another":    &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other"}, PeerName: podlink.ChecksumPeer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inNamespace(t, func(k *realKernel) {
				if err := k.handle.LinkAdd(foreign); err != nil {
					t.Error(err)
					return
				}
				o := newOps(unpublished{k})
				row := wanted()
				row.Checksums = true
				if err := o.Update(t.Context(), nil, 0, row); err == nil || !strings.Contains(err.Error(), "it is foreign: rename or delete it") {
					t.Errorf("got %v", err)
				}
				if err := o.remove(podlink.OverlayDevice, mac.Addr{}); err != nil {
					t.Error(err)
				}
				if _, err := k.handle.LinkByName(foreign.Attrs().Name); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
