package podmtu

import (
	"errors"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/podns"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/mtus"
	"github.com/waggle-net/waggle/pkg/testnet"
)

const hostEnd = "lxc000000000001"

// attach creates a pod in a network namespace of its own, and moves the test into the namespace of a node.
func attach(t *testing.T) (*testnet.Namespace, *endpoints.Endpoint) {
	t.Helper()
	inside, node := testnet.New(t), testnet.New(t)
	node.Enter()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = hostEnd, 1500
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(inside.Handle()))}))
	host, err := netlink.LinkByName(hostEnd)
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(host))
	inside.Do(func() {
		link, err := netlink.LinkByName("eth0")
		errs := []error{err}
		for _, addr := range []string{"10.0.0.7/24", "fd00::7/64"} {
			a, err := netlink.ParseAddr(addr)
			a.Flags = unix.IFA_F_NODAD
			errs = append(errs, err, netlink.AddrAdd(link, a))
		}
		errs = append(errs, netlink.LinkSetUp(link))
		for dst, via := range map[string]string{"0.0.0.0/0": "10.0.0.1", "::/0": "fd00::1"} {
			_, prefix, err := net.ParseCIDR(dst)
			errs = append(errs, err, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: prefix, Gw: net.ParseIP(via), MTU: 1450, Priority: 7, AdvMSS: 1300}))
		}
		// The agent does not own a route of the user.
		_, prefix, err := net.ParseCIDR("10.1.0.0/16")
		errs = append(errs, err, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: prefix, Gw: net.ParseIP("10.0.0.2"), MTU: 1000}))
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
	})
	var stat unix.Stat_t
	require.NoError(t, unix.Fstat(int(inside.Handle()), &stat))
	return inside, &endpoints.Endpoint{ID: 1, HostIfName: hostEnd, HostIfIndex: host.Attrs().Index, NetnsInode: stat.Ino,
		NetnsPath: "/proc/self/fd/" + strconv.Itoa(int(inside.Handle()))}
}

// routesOf lists the routes with a gateway in a namespace.
func routesOf(t *testing.T, inside *testnet.Namespace) (all []netlink.Route) {
	t.Helper()
	inside.Do(func() {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			routes, err := netlink.RouteList(nil, family)
			if err != nil {
				t.Error(err)
			}
			for _, r := range routes {
				if r.Gw != nil {
					all = append(all, r)
				}
			}
		}
	})
	return all
}

// The MTU of both ends and of the default routes is read and changed; all other properties of the routes stay, and so do routes to other destinations.
func TestPrivilegedPod_LinkAndRoutesAreChanged(t *testing.T) {
	t.Parallel()
	inside, ep := attach(t)
	before := routesOf(t, inside)
	require.Len(t, before, 3)
	pod, err := real{}.Open(ep)
	require.NoError(t, err)
	defer pod.Close()
	read := func() (host, link int, routes map[bool]int) {
		s, err := pod.ReadSizes()
		require.NoError(t, err)
		routes = map[bool]int{}
		for _, r := range s.routes {
			require.False(t, r.locked)
			routes[r.ipv6] = r.mtu
		}
		require.Len(t, routes, len(s.routes))
		return s.host, s.link, routes
	}
	change := func(host, link, route int) {
		t.Helper()
		require.NoError(t, errors.Join(pod.SetHost(host), pod.SetLink(link)))
		s, err := pod.ReadSizes()
		require.NoError(t, err)
		for _, r := range s.routes {
			require.NoError(t, pod.SetRoute(r, route))
		}
		gotHost, gotLink, routes := read()
		require.Equal(t, []int{host, link}, []int{gotHost, gotLink})
		require.Equal(t, map[bool]int{false: route, true: route}, routes)
		after := routesOf(t, inside)
		for i := range after {
			if ones, _ := after[i].Dst.Mask.Size(); ones == 0 {
				require.Equal(t, route, after[i].MTU)
				after[i].MTU = 1450
			}
		}
		require.Equal(t, before, after)
	}
	host, link, routes := read()
	require.Equal(t, []int{1500, 1500}, []int{host, link})
	require.Equal(t, map[bool]int{false: 1450, true: 1450}, routes)
	change(9000, 9000, 8950)
	change(1400, 1400, 1400)
	// The kernel changes routes of IPv6 with the link: the record of assigned sizes must accept these values.
	require.NoError(t, pod.SetLink(1500))
	_, _, routes = read()
	require.Equal(t, map[bool]int{false: 1400, true: 1500}, routes)
	require.NoError(t, pod.SetLink(1300))
	_, _, routes = read()
	require.Equal(t, map[bool]int{false: 1400, true: 1300}, routes)
	change(65535, 65535, sizeOf(mtus.MTU{DeviceMTU: 65535, RouteMTU: 65535}).Route)
}

// A pod may have any number of routes. The cell reads only the default routes over the pod's link, at most maxRoutes and one.
func TestPrivilegedPod_TooManyDefaultRoutes(t *testing.T) {
	t.Parallel()
	inside, ep := attach(t)
	pod, err := real{}.Open(ep)
	require.NoError(t, err)
	defer pod.Close()
	add := func(r netlink.Route) {
		t.Helper()
		inside.Do(func() {
			link, err := netlink.LinkByName("eth0")
			if err == nil {
				r.LinkIndex = link.Attrs().Index
				err = netlink.RouteAdd(&r)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	add(netlink.Route{Dst: all, Gw: net.ParseIP("10.0.0.2"), Table: 100})
	for i := range maxRoutes - 2 { // attach adds one of each family
		add(netlink.Route{Dst: all, Gw: net.ParseIP("10.0.0.2"), Priority: 100 + i})
	}
	s, err := pod.ReadSizes()
	require.NoError(t, err)
	require.Len(t, s.routes, maxRoutes)
	add(netlink.Route{Dst: all, Gw: net.ParseIP("10.0.0.2"), Priority: 200})
	_, err = pod.ReadSizes()
	require.ErrorIs(t, err, errByHand)
	require.ErrorContains(t, err, "more than 16 default routes")
}

// The cell changes nothing if the path has another namespace or none, or if another link has the index of the pod's link.
func TestPrivilegedOpen_OnlyThePodItself(t *testing.T) {
	t.Parallel()
	inside, ep := attach(t)
	other := *ep
	other.NetnsInode++
	_, err := real{}.Open(&other)
	require.ErrorIs(t, err, podns.ErrGone)
	other = *ep
	other.NetnsPath = filepath.Join(t.TempDir(), "none")
	_, err = real{}.Open(&other)
	require.ErrorIs(t, err, podns.ErrGone)
	other = *ep
	other.HostIfName = "lxc000000000002"
	pod, err := real{}.Open(&other)
	require.NoError(t, err)
	defer pod.Close()
	_, err = pod.ReadSizes()
	require.ErrorContains(t, err, "is not the peer of lxc000000000002")
	require.Error(t, pod.SetHost(1300))
	require.Error(t, pod.SetLink(1300))
	link, err := netlink.LinkByName(hostEnd)
	require.NoError(t, err)
	require.Equal(t, 1500, link.Attrs().MTU)
	require.True(t, slices.ContainsFunc(routesOf(t, inside), func(r netlink.Route) bool { return r.MTU == 1450 }))
}

// The agent has SYS_ADMIN only if it must change running pods. Without the capability the error names it.
func TestPrivilegedOpen_NamesMissingCapability(t *testing.T) {
	t.Parallel()
	_, ep := attach(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its capabilities
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		data[0].Effective = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_DAC_OVERRIDE
		data[0].Permitted = data[0].Effective
		if err := unix.Capset(&header, &data[0]); err != nil {
			done <- err
			return
		}
		denied := *ep
		denied.NetnsPath = strings.Replace(ep.NetnsPath, "self", "thread-self", 1)
		_, err := real{}.Open(&denied)
		done <- err
	}()
	err := <-done
	require.ErrorIs(t, err, unix.EPERM)
	require.ErrorContains(t, err, "--enable-pod-mtu-updates needs the capability SYS_ADMIN")
}
