package nodekit

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/tc"
)

// BarePair is two namespaces that one veth pair joins without any program, or two by way of one that only redirects: the controls of
// benchmarks.
type BarePair struct {
	client, server namespaces
	between        *namespaces     // of the ends of two pairs; nil when one pair joins both namespaces
	programs       []*ebpf.Program // at these ends
}

var (
	bareClient = []netip.Prefix{netip.MustParsePrefix("10.9.9.1/24"), netip.MustParsePrefix("fd00:9:9::1/64")}
	bareServer = []netip.Prefix{netip.MustParsePrefix("10.9.9.2/24"), netip.MustParsePrefix("fd00:9:9::2/64")}
)

// NewBarePair makes a pair without any program.
func NewBarePair() (*BarePair, error) {
	return newPair(func(b *BarePair) error {
		return b.client.Do(func() error { return vethTo(b.server, "eth0", nil) })
	})
}

// NewRedirectedPair makes two namespaces, each with a veth pair to a third one as pods have them to their node. The programs there do nothing but
// redirect to the other namespace: no datapath between pods can be faster.
func NewRedirectedPair() (*BarePair, error) {
	return newPair(func(b *BarePair) error {
		between, err := newNamespaces()
		if err != nil {
			return err
		}
		b.between = &between
		return between.Do(b.redirect)
	})
}

// newPair makes the namespaces, which join connects by links that are called eth0 there.
func newPair(join func(*BarePair) error) (_ *BarePair, err error) {
	b := &BarePair{}
	if b.client, err = newNamespaces(); err != nil {
		return nil, err
	}
	if b.server, err = newNamespaces(); err != nil {
		return nil, errors.Join(err, b.client.Close())
	}
	if err = join(b); err == nil {
		err = b.client.Do(func() error { return address("eth0", bareServer[0], bareClient...) })
	}
	if err == nil {
		err = b.server.Do(func() error { return address("eth0", bareClient[0], bareServer...) })
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// vethTo makes a veth pair: a link of this name here, and eth0 in another namespace.
func vethTo(peer namespaces, name string, mac net.HardwareAddr) error {
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: mac}, PeerName: "eth0",
		PeerNamespace: netlink.NsFd(int(peer.net.Fd())), PeerHardwareAddr: mac})
}

// redirect joins both namespaces by way of this one. Both ends of a pair have the same address, so that a frame to one is one to the other.
func (b *BarePair) redirect() error {
	handle, err := tc.Open()
	if err != nil {
		return err
	}
	defer handle.Close()
	var ends []int
	for i, to := range []namespaces{b.client, b.server} {
		name := fmt.Sprintf("to%d", i)
		if err := vethTo(to, name, net.HardwareAddr{2, 9, 9, 0, 0, byte(i)}); err != nil {
			return err
		}
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = errors.Join(netlink.LinkSetUp(link), handle.EnsureClsact(link.Attrs().Index, tc.Blocks{}))
		}
		if err != nil {
			return fmt.Errorf("set up %s: %w", name, err)
		}
		ends = append(ends, link.Attrs().Index)
	}
	for i, end := range ends {
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "redirect", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R1, int32(ends[1-i])), asm.Mov.Imm(asm.R2, 0), asm.FnRedirectPeer.Call(), asm.Return()}})
		if err != nil {
			return fmt.Errorf("load the program that redirects: %w", err)
		}
		b.programs = append(b.programs, program)
		if err := handle.ReplaceFilter(tc.Ingress(end), "redirect", program.FD()); err != nil {
			return err
		}
	}
	return nil
}

// Client and Server are the two ends; Addr is the server's address in a family.
func (b *BarePair) Client() Place { return place{b.client} }
func (b *BarePair) Server() Place { return place{b.server} }
func (b *BarePair) Addr(ipv6 bool) netip.Addr {
	if ipv6 {
		return bareServer[1].Addr()
	}
	return bareServer[0].Addr()
}

// Close removes the namespaces, and with them all else.
func (b *BarePair) Close() error {
	err := errors.Join(b.client.Close(), b.server.Close())
	if b.between != nil {
		err = errors.Join(err, b.between.Close())
	}
	for _, p := range b.programs {
		err = errors.Join(err, p.Close())
	}
	return err
}
