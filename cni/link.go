package cni

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/rtnl"
)

// maxAttempts is how many host ends of one attachment may exist at once: the present one, and others whose deletion is
// pending.
const maxAttempts = 8

var (
	errAttached     = errors.New("the attachment exists already")
	errPodLinkTaken = errors.New("an interface of that name exists in the pod")
)

// linkSpec is what a new link must be.
type linkSpec struct {
	hostName string
	podName  string
	mtu      int
	hostMAC  mac.Addr
	podMAC   mac.Addr
	pod      *podNamespace
}

// linkType makes one kind of link. The host end is made down and in [podlink.Group]; the pod's end is born in its
// namespace.
type linkType interface {
	create(host *rtnl.Handle, spec linkSpec) error
}

// veth is a pair of virtual Ethernet devices.
type veth struct{}

func (veth) create(host *rtnl.Handle, spec linkSpec) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = spec.hostName
	attrs.MTU = spec.mtu
	attrs.Group = podlink.Group
	attrs.HardwareAddr = spec.hostMAC.HardwareAddr()
	// A queue for each processor, the kernel's default, costs time and memory and gains nothing without a qdisc.
	attrs.NumTxQueues, attrs.NumRxQueues = 1, 1
	return host.LinkAdd(&netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         spec.podName,
		PeerHardwareAddr: spec.podMAC.HardwareAddr(),
		PeerNamespace:    netlink.NsFd(spec.pod.file.Fd()),
		PeerTxQLen:       -1,
	})
}

// randomMAC returns a unicast address of the range that anyone may use.
func randomMAC() mac.Addr {
	var a mac.Addr
	_, _ = rand.Read(a[:]) // never fails
	a[0] = a[0]&^0x01 | 0x02
	return a
}

// hostLink is a host end that was found or made.
type hostLink struct {
	name  string
	index int
	peer  int // index of the pod's end in its namespace
	group uint32
	attrs *netlink.LinkAttrs
}

func (l *hostLink) up() bool { return l.attrs.Flags&net.FlagUp != 0 }

// findHostLink returns nil when no link of that name exists.
func findHostLink(host *rtnl.Handle, name string) (*hostLink, error) {
	link, err := host.LinkByName(name)
	if rtnl.IsGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up link %s: %w", name, err)
	}
	a := link.Attrs()
	if a.Name != name { // found by another name that it also has
		return nil, fmt.Errorf("look up link %s: %s carries that name as an alternative one", name, a.Name)
	}
	return &hostLink{name: name, index: a.Index, peer: a.ParentIndex, group: a.Group, attrs: a}, nil
}

// freeHostName returns the first name of the attachment that no link has. A link that is not waiting for its deletion
// means that the attachment exists. When a runtime makes attachments faster than the agent deletes them, every name is
// taken by a link that waits: then the first of them is deleted here, which also slows that runtime down.
func freeHostName(host *rtnl.Handle, containerID, ifName string) (string, error) {
	for attempt := range maxAttempts {
		name := podlink.HostName(containerID, ifName, attempt)
		link, err := findHostLink(host, name)
		switch {
		case err != nil:
			return "", err
		case link == nil:
			return name, nil
		case link.group != podlink.DeletedGroup:
			return "", fmt.Errorf("%w: link %s", errAttached, name)
		}
	}
	name := podlink.HostName(containerID, ifName, 0)
	return name, deleteLink(host, name)
}
