package overlay

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/podlink"
)

// Complete implements [kernel].
func (k *realKernel) Complete(mtu int, up bool) error {
	ends, err := k.pair()
	if err == nil && ends == nil {
		if err := k.handle.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: podlink.ChecksumDevice, TxQLen: 1000}, PeerName: podlink.ChecksumPeer}); err != nil {
			return err
		}
		ends, err = k.pair()
	}
	if err != nil {
		return err
	}
	// The kernel completes the checksums of packets before it hands them to a device that cannot.
	if err := withoutChecksums(podlink.ChecksumDevice); err != nil {
		return err
	}
	for _, end := range slices.Backward(ends) { // the device that is set up after its peer sends at once, the other one up to a second later
		a := end.Attrs()
		if a.Group != podlink.OverlayGroup {
			err = errors.Join(err, k.handle.LinkSetGroup(end, int(podlink.OverlayGroup)))
		}
		if a.RawFlags&unix.IFF_NOARP == 0 { // after the group, because the kernel does not announce a change of only the group while a device is down
			err = errors.Join(err, k.handle.LinkSetARPOff(end))
		}
		if mtu != 0 && a.MTU != mtu {
			err = errors.Join(err, k.handle.LinkSetMTU(end, mtu))
		}
		if up && a.RawFlags&unix.IFF_UP == 0 {
			err = errors.Join(err, k.handle.LinkSetUp(end))
		}
	}
	return err
}

// EndCompletion implements [kernel].
func (k *realKernel) EndCompletion() error {
	ends, err := k.pair()
	if ends == nil {
		if errors.Is(err, errForeign) {
			return nil
		}
		return err
	}
	if err := k.handle.LinkDel(ends[0]); err != nil && !rtnl.IsGone(err) {
		return err
	}
	return nil
}

// errForeign means that a link has a name of the agent but was not created by it.
var errForeign = errors.New("it is foreign: rename or delete it")

// pair returns both ends of the pair that completes checksums, none without one. The agent owns links with both names that are each other's peers.
func (k *realKernel) pair() ([]netlink.Link, error) {
	var ends []netlink.Link
	for _, name := range []string{podlink.ChecksumDevice, podlink.ChecksumPeer} {
		link, err := k.handle.LinkByName(name)
		switch {
		case err == nil:
			ends = append(ends, link)
		case !rtnl.IsGone(err):
			return nil, err
		}
	}
	if len(ends) == 0 {
		return nil, nil
	}
	first, last := ends[0].Attrs(), ends[len(ends)-1].Attrs()
	if ends[0].Type() != "veth" || first.Name != podlink.ChecksumDevice || last.Name != podlink.ChecksumPeer || first.ParentIndex != last.Index || last.ParentIndex != first.Index {
		return nil, fmt.Errorf("a %s has the name %s: %w", ends[0].Type(), first.Name, errForeign)
	}
	return ends, nil
}

// withoutChecksums turns off the transmit checksum offload of a device, and with it the segmentation offload.
func withoutChecksums(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{command: unix.ETHTOOL_STXCSUM} // struct ethtool_value
	var request struct {                                                   // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:], name)
	request.data = unsafe.Pointer(&value)
	if _, _, number := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); number != 0 {
		return fmt.Errorf("turn off the checksum offload: %w", number)
	}
	return nil
}
