package podmtu

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/podns"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// kernel is the interface of this cell to the kernel.
type kernel interface {
	// Open opens the pod of an endpoint. The error is [podns.ErrGone] if its namespace no longer exists, and EPERM if the agent may not enter
	// it. The caller must close the pod.
	Open(ep *endpoints.Endpoint) (pod, error)
}

// pod is the link of one pod and the default routes over it.
type pod interface {
	// ReadSizes reads all sizes.
	ReadSizes() (sizes, error)
	SetHost(mtu int) error           // of the host end
	SetLink(mtu int) error           // of the pod's end
	SetRoute(r route, mtu int) error // of a default route that ReadSizes returned
	Close()
}

// maxRoutes is the maximum number of default routes over a pod's link. The plugin adds one of each family; a pod with NET_ADMIN can add any number.
const maxRoutes = 16

// sizes are the MTUs of a pod in bytes.
type sizes struct {
	host, link int // of the two ends of the link
	routes     []route
}

// route is a default route over the pod's link.
type route struct {
	ipv6   bool
	mtu    int  // bytes; 0: MTU of the link
	locked bool // senders ignore path MTU discovery

	kernel netlink.Route
}

// real implements kernel.
type real struct{}

func newKernel() kernel { return real{} }

// Open implements kernel. The host end of the link is looked up in the namespace of the agent.
func (real) Open(ep *endpoints.Endpoint) (pod, error) {
	ns, err := podns.Open(ep.NetnsPath, ep.NetnsInode)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	inside, err := rtnl.OpenAt(ns)
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w: --enable-pod-mtu-updates needs the capability SYS_ADMIN", err)
		}
		return nil, fmt.Errorf("enter %s: %w", ep.NetnsPath, err)
	}
	node, err := rtnl.Open()
	if err != nil {
		inside.Close()
		return nil, err
	}
	return attached{ep, node, inside}, nil
}

// attached is a pod with a handle in the namespace of the node and one in its own.
type attached struct {
	ep           *endpoints.Endpoint
	node, inside *rtnl.Handle
}

// links finds both ends of the link. Each must name the other one as its peer, because the kernel reuses indexes.
func (a attached) links() (host, link netlink.Link, err error) {
	host, err = a.node.LinkByIndex(a.ep.HostIfIndex)
	if err != nil {
		return nil, nil, fmt.Errorf("look up link %s: %w", a.ep.HostIfName, err)
	}
	link, err = a.inside.LinkByIndex(host.Attrs().ParentIndex)
	if err != nil {
		return nil, nil, fmt.Errorf("look up the peer of %s in the pod: %w", a.ep.HostIfName, err)
	}
	if host.Attrs().Name != a.ep.HostIfName || host.Type() != "veth" || link.Attrs().ParentIndex != host.Attrs().Index {
		return nil, nil, fmt.Errorf("link %q in the pod is not the peer of %s", link.Attrs().Name, a.ep.HostIfName)
	}
	return host, link, nil
}

// ReadSizes implements pod.
func (a attached) ReadSizes() (sizes, error) {
	host, link, err := a.links()
	if err != nil {
		return sizes{}, err
	}
	s := sizes{host: host.Attrs().MTU, link: link.Attrs().MTU}
	routes, err := a.inside.DefaultRoutes(link.Attrs().Index, maxRoutes+1)
	if err != nil {
		return sizes{}, fmt.Errorf("in the pod: %w", err)
	}
	if len(routes) > maxRoutes {
		return sizes{}, fmt.Errorf("%w: the link has more than %d default routes", errByHand, maxRoutes)
	}
	for _, r := range routes {
		s.routes = append(s.routes, route{r.Family == netlink.FAMILY_V6, r.MTU, r.MTULock, r})
	}
	return s, nil
}

// SetHost implements pod.
func (a attached) SetHost(mtu int) error {
	host, _, err := a.links()
	if err == nil {
		err = a.node.LinkSetMTU(host, mtu)
	}
	if err != nil {
		return fmt.Errorf("set MTU %d of %s: %w", mtu, a.ep.HostIfName, err)
	}
	return nil
}

// SetLink implements pod.
func (a attached) SetLink(mtu int) error {
	_, link, err := a.links()
	if err == nil {
		err = a.inside.LinkSetMTU(link, mtu)
	}
	if err != nil {
		return fmt.Errorf("set MTU %d of the link in the pod: %w", mtu, err)
	}
	return nil
}

// SetRoute implements pod. The kernel replaces the old route by the new one.
func (a attached) SetRoute(r route, mtu int) error {
	next := r.kernel
	next.MTU = mtu
	if err := a.inside.RouteReplace(&next); err != nil {
		return fmt.Errorf("set MTU %d of route %s via %s in the pod: %w", mtu, next.Dst, next.Gw, err)
	}
	return nil
}

// Close implements pod.
func (a attached) Close() {
	a.inside.Close()
	a.node.Close()
}
