package nodekit

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
)

// RoutedPair is two namespaces whose veth pairs end in a third one, which forwards between them without any program, like pods of a node whose kernel
// implements services. It is the control of services.
type RoutedPair struct{ client, router, server namespaces }

// Addresses of the two ends, and of the router at each of them.
var (
	routedClient    = []netip.Prefix{netip.MustParsePrefix("10.9.10.2/24"), netip.MustParsePrefix("fd00:9:10::2/64")}
	routedServer    = []netip.Prefix{netip.MustParsePrefix("10.9.11.2/24"), netip.MustParsePrefix("fd00:9:11::2/64")}
	routersAtClient = []netip.Prefix{netip.MustParsePrefix("10.9.10.1/24"), netip.MustParsePrefix("fd00:9:10::1/64")}
	routersAtServer = []netip.Prefix{netip.MustParsePrefix("10.9.11.1/24"), netip.MustParsePrefix("fd00:9:11::1/64")}
)

// NewRoutedPair creates the namespaces and links.
func NewRoutedPair() (_ *RoutedPair, err error) {
	r := &RoutedPair{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	for _, ns := range []*namespaces{&r.client, &r.router, &r.server} {
		if *ns, err = newNamespaces(); err != nil {
			return nil, err
		}
	}
	if err := r.router.Do(func() error {
		for _, setting := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/net/"+setting, []byte("1"), 0); err != nil {
				return fmt.Errorf("let the namespace forward: %w", err)
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if err := r.join(r.client, "client", routedClient, routersAtClient); err != nil {
		return nil, err
	}
	return r, r.join(r.server, "server", routedServer, routersAtServer)
}

// join connects an end to the router.
func (r *RoutedPair) join(end namespaces, name string, ends, routers []netip.Prefix) error {
	if err := r.router.Do(func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0",
			PeerNamespace: netlink.NsFd(int(end.net.Fd()))}); err != nil {
			return err
		}
		return linkUp(name, routers...)
	}); err != nil {
		return fmt.Errorf("connect the %s: %w", name, err)
	}
	return end.Do(func() error {
		if err := linkUp("eth0", ends...); err != nil {
			return err
		}
		for _, gateway := range routers {
			if err := defaultRoute("eth0", gateway.Addr()); err != nil {
				return err
			}
		}
		return nil
	})
}

// Client, Router and Server return the three namespaces; Addr returns the server's address in a family.
func (r *RoutedPair) Client() NetNS { return netNS{r.client} }
func (r *RoutedPair) Router() NetNS { return netNS{r.router} }
func (r *RoutedPair) Server() NetNS { return netNS{r.server} }
func (r *RoutedPair) Addr(ipv6 bool) netip.Addr {
	if ipv6 {
		return routedServer[1].Addr()
	}
	return routedServer[0].Addr()
}

// Close removes the namespaces and thereby the links.
func (r *RoutedPair) Close() (err error) {
	for _, ns := range []namespaces{r.client, r.router, r.server} {
		if ns.net != nil {
			err = errors.Join(err, ns.Close())
		}
	}
	return err
}
