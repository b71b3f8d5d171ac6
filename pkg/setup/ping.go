package setup

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

const (
	pingTries   = 10
	pingTimeout = 500 * time.Millisecond
)

// ping sends ICMP echo requests from the calling thread's namespace until one is answered.
func ping(ctx context.Context, to netip.Addr) error {
	var last error
	for range pingTries {
		if last = echo(to); last == nil || ctx.Err() != nil {
			return last
		}
		if !errors.Is(last, errNoReply) { // for example no route, which needs a moment; after a timeout no pause is needed
			time.Sleep(pingTimeout / 5)
		}
	}
	return fmt.Errorf("ping %s %d times: %w", to, pingTries, last)
}

var errNoReply = errors.New("no answer")

// echo sends one request and waits for its reply.
func echo(to netip.Addr) error {
	network, request, reply := "ip4:icmp", byte(8), byte(0)
	if to.Is6() {
		network, request, reply = "ip6:ipv6-icmp", 128, 129
	}
	conn, err := net.DialIP(network, nil, &net.IPAddr{IP: to.AsSlice()})
	if err != nil {
		return err
	}
	defer conn.Close()
	packet := make([]byte, 16)
	_, _ = rand.Read(packet[4:]) // identifier, sequence and data, which identify the reply
	packet[0] = request
	if !to.Is6() { // the kernel computes the checksum of ICMPv6
		binary.BigEndian.PutUint16(packet[2:], checksum(packet))
	}
	if _, err := conn.Write(packet); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(pingTimeout)); err != nil {
		return err
	}
	for buffer := make([]byte, 256); ; {
		n, _, err := conn.ReadFrom(buffer)
		if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
			return errNoReply
		}
		if err != nil {
			return err
		}
		if n == len(packet) && buffer[0] == reply && string(buffer[4:n]) == string(packet[4:]) {
			return nil
		}
	}
}

// checksum returns the checksum of RFC 1071, for an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
