package nodekit

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// BarePair is two namespaces that one veth pair joins, without any program: the control of benchmarks.
type BarePair struct{ client, server namespaces }

var (
	bareClient = []netip.Prefix{netip.MustParsePrefix("10.9.9.1/24"), netip.MustParsePrefix("fd00:9:9::1/64")}
	bareServer = []netip.Prefix{netip.MustParsePrefix("10.9.9.2/24"), netip.MustParsePrefix("fd00:9:9::2/64")}
)

// NewBarePair makes the pair.
func NewBarePair() (_ *BarePair, err error) {
	b := &BarePair{}
	if b.client, err = newNamespaces(); err != nil {
		return nil, err
	}
	if b.server, err = newNamespaces(); err != nil {
		return nil, errors.Join(err, b.client.Close())
	}
	err = b.client.Do(func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0",
			PeerNamespace: netlink.NsFd(int(b.server.net.Fd()))}); err != nil {
			return err
		}
		return address("eth0", bareServer[0], bareClient...)
	})
	if err == nil {
		err = b.server.Do(func() error { return address("eth0", bareClient[0], bareServer...) })
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
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

// Close removes both namespaces, and with them the pair.
func (b *BarePair) Close() error { return errors.Join(b.client.Close(), b.server.Close()) }
