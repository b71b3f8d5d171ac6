package nodekit

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/datapath/tc"
)

// BarePair is two namespaces that one veth pair joins without any program, or several veth pairs with programs that only redirect. It is the control of
// benchmarks.
type BarePair struct {
	client, server namespaces
	between        []namespaces    // with the inner ends of several pairs; none if one pair joins both namespaces
	programs       []*ebpf.Program // attached to these ends
}

var (
	bareClient = []netip.Prefix{netip.MustParsePrefix("10.9.9.1/24"), netip.MustParsePrefix("fd00:9:9::1/64")}
	bareServer = []netip.Prefix{netip.MustParsePrefix("10.9.9.2/24"), netip.MustParsePrefix("fd00:9:9::2/64")}
)

// NewBarePair creates a pair without any program.
func NewBarePair() (*BarePair, error) {
	return newPair(func(b *BarePair) error {
		return b.client.Do(func() error { return vethTo(b.server, "eth0", nil) })
	})
}

// NewRedirectedPair creates two namespaces, each with a veth pair to a third one, as pods have to their node. The programs in the third namespace only
// redirect to the other pair: no datapath between pods can be faster.
func NewRedirectedPair() (*BarePair, error) {
	return newPair(func(b *BarePair) error {
		node, err := b.addBetween()
		if err != nil {
			return err
		}
		return node.Do(func() error {
			client, err := endTo(b.client, 0)
			if err != nil {
				return err
			}
			server, err := endTo(b.server, 1)
			if err != nil {
				return err
			}
			return errors.Join(b.redirect(client, server, asm.FnRedirectPeer), b.redirect(server, client, asm.FnRedirectPeer))
		})
	})
}

// NewRedirectedNodes creates two namespaces, each with a veth pair to a namespace that represents its node, and a pair between those two. The programs in the
// nodes only redirect: no datapath between pods of two nodes can be faster.
func NewRedirectedNodes() (*BarePair, error) {
	return newPair(func(b *BarePair) error {
		var nodes []namespaces
		for range 2 {
			node, err := b.addBetween()
			if err != nil {
				return err
			}
			nodes = append(nodes, node)
		}
		if err := nodes[0].Do(func() error {
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: wire, HardwareAddr: endMAC(0)}, PeerName: wire,
				PeerNamespace: netlink.NsFd(int(nodes[1].net.Fd())), PeerHardwareAddr: endMAC(1)})
		}); err != nil {
			return err
		}
		for i, pod := range []namespaces{b.client, b.server} {
			if err := nodes[i].Do(func() error {
				end, err := endTo(pod, i)
				if err != nil {
					return err
				}
				out, err := upWithClsact(wire)
				if err != nil {
					return err
				}
				return errors.Join(b.redirect(end, out, asm.FnRedirect), b.redirect(out, end, asm.FnRedirectPeer))
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// wire is the name of both ends of the veth pair between the namespaces of [NewRedirectedNodes].
const wire = "wire"

func (b *BarePair) addBetween() (namespaces, error) {
	ns, err := newNamespaces()
	if err == nil {
		b.between = append(b.between, ns)
	}
	return ns, err
}

// newPair creates the namespaces. The function join connects them by links, which are named eth0 in the two namespaces.
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

// vethTo creates a veth pair: one end with this name in the current namespace, and eth0 in another one.
func vethTo(peer namespaces, name string, mac net.HardwareAddr) error {
	return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: mac}, PeerName: "eth0",
		PeerNamespace: netlink.NsFd(int(peer.net.Fd())), PeerHardwareAddr: mac})
}

// endMAC returns the address of both ends of the pair to the client, number 0, or the server, number 1: a frame for one end is valid at the other.
func endMAC(number int) net.HardwareAddr { return net.HardwareAddr{2, 9, 9, 0, 0, byte(number)} }

// endTo creates a veth pair to the namespace of the client or the server, and returns the index of the local end.
func endTo(to namespaces, number int) (int, error) {
	name := fmt.Sprintf("to%d", number)
	if err := vethTo(to, name, endMAC(number)); err != nil {
		return 0, err
	}
	return upWithClsact(name)
}

// upWithClsact sets a link up, adds a clsact qdisc for programs, and returns the link's index.
func upWithClsact(name string) (int, error) {
	handle, err := tc.Open()
	if err != nil {
		return 0, err
	}
	defer handle.Close()
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = errors.Join(netlink.LinkSetUp(link), handle.EnsureClsact(link.Attrs().Index, tc.Blocks{}))
	}
	if err != nil {
		return 0, fmt.Errorf("set up %s: %w", name, err)
	}
	return link.Attrs().Index, nil
}

// redirect redirects packets from one link to another one, by bpf_redirect or bpf_redirect_peer.
func (b *BarePair) redirect(from, to int, helper asm.BuiltinFunc) error {
	handle, err := tc.Open()
	if err != nil {
		return err
	}
	defer handle.Close()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "redirect", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R1, int32(to)), asm.Mov.Imm(asm.R2, 0), helper.Call(), asm.Return()}})
	if err != nil {
		return fmt.Errorf("load the program that redirects: %w", err)
	}
	b.programs = append(b.programs, program)
	return handle.ReplaceFilter(tc.Ingress(from), "redirect", program.FD())
}

// Client and Server return the two ends; Addr returns the server's address in a family.
func (b *BarePair) Client() NetNS { return netNS{b.client} }
func (b *BarePair) Server() NetNS { return netNS{b.server} }
func (b *BarePair) Addr(ipv6 bool) netip.Addr {
	if ipv6 {
		return bareServer[1].Addr()
	}
	return bareServer[0].Addr()
}

// Close removes the namespaces and thereby all links and programs.
func (b *BarePair) Close() error {
	err := errors.Join(b.client.Close(), b.server.Close())
	for _, ns := range b.between {
		err = errors.Join(err, ns.Close())
	}
	for _, p := range b.programs {
		err = errors.Join(err, p.Close())
	}
	return err
}
