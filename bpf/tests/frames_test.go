package tests

import (
	"encoding/binary"
	"net"

	"golang.org/x/sys/unix"
)

// Layouts of linux/if_packet.h and linux/virtio_net.h.
const (
	txFrameSize     = 2048
	txHeaderLen     = 32 // struct tpacket2_hdr; the frame follows at once
	txStatusAt      = 0
	txLengthAt      = 4
	txSendRequest   = 1
	vnetHeaderLen   = 10
	vnetNeedsCsum   = 1
	vnetCsumStartAt = 6
)

// packetSocket opens a raw socket and returns it with the address of eth0.
func packetSocket() (int, *unix.SockaddrLinklayer, error) {
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		return 0, nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	return fd, &unix.SockaddrLinklayer{Ifindex: eth0.Index, Halen: 6}, err
}

// sendFrame sends a whole frame on eth0.
func sendFrame(frame []byte) error {
	fd, to, err := packetSocket()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, frame, 0, to)
}

// sendPaged sends a frame on eth0 with only the Ethernet header in the linear part: the kernel takes the rest in pages from a ring.
func sendPaged(frame []byte) error {
	fd, to, err := packetSocket()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2); err != nil {
		return err
	}
	ring := &unix.TpacketReq{Block_size: 2 * txFrameSize, Block_nr: 1, Frame_size: txFrameSize, Frame_nr: 2}
	if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_TX_RING, ring); err != nil {
		return err
	}
	memory, err := unix.Mmap(fd, 0, 2*txFrameSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer unix.Munmap(memory)
	copy(memory[txHeaderLen:], frame)
	binary.NativeEndian.PutUint32(memory[txLengthAt:], uint32(len(frame)))
	binary.NativeEndian.PutUint32(memory[txStatusAt:], txSendRequest)
	return unix.Sendto(fd, nil, 0, to)
}

// sendPartial sends a frame on eth0 whose checksum from an offset on is left to the hardware.
func sendPartial(frame []byte, csumStart uint16) error {
	fd, to, err := packetSocket()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		return err
	}
	header := make([]byte, vnetHeaderLen)
	header[0] = vnetNeedsCsum
	binary.NativeEndian.PutUint16(header[vnetCsumStartAt:], csumStart)
	return unix.Sendto(fd, append(header, frame...), 0, to)
}
