package testnet

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// TUN creates a TUN device, which has no link header, in the network namespace of the thread. The kernel chooses its index when index is 0. Each read from
// the file returns a packet that the kernel sends by the device, and each write makes the device receive a packet. Closing the file removes the device.
func TUN(name string, index int) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil && index != 0 {
		err = unix.IoctlSetPointerInt(fd, unix.TUNSETIFINDEX, index)
	}
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make TUN device %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), "/dev/net/tun"), nil // only after the device exists: before, the runtime cannot poll the file
}

// JoinTUNs forwards packets between two TUN devices until leave, which removes both.
func JoinTUNs(a, b *os.File) (leave func() error) {
	go carry(a, b)
	go carry(b, a)
	return func() error { return errors.Join(a.Close(), b.Close()) }
}

// carry forwards packets until a device is removed. A device that is down rejects packets.
func carry(from, to *os.File) {
	packet := make([]byte, 1<<16)
	for {
		n, err := from.Read(packet)
		if err != nil {
			return
		}
		_, _ = to.Write(packet[:n])
	}
}
