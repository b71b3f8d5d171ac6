package cni

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/waggle-net/waggle/pkg/datapath/rtnl"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/podlink"
)

// maxAttempts is the maximum number of host ends of one attachment: the current one and the ones pending deletion.
const maxAttempts = 8

var (
	errAttached     = errors.New("the attachment exists already")
	errPodLinkTaken = errors.New("an interface of that name exists in the pod")
)

// linkSpec configures a new link.
type linkSpec struct {
	hostName string
	podName  string
	mtu      int
	hostMAC  mac.Addr
	podMAC   mac.Addr
	pod      *podNamespace
}

// linkType creates one kind of link. The host end is created down and in [podlink.Group]; the pod's end is created in its namespace.
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
	// The kernel's default, a queue for each CPU, costs time and memory and has no benefit without a qdisc.
	attrs.NumTxQueues, attrs.NumRxQueues = 1, 1
	return host.LinkAdd(&netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         spec.podName,
		PeerHardwareAddr: spec.podMAC.HardwareAddr(),
		PeerNamespace:    netlink.NsFd(spec.pod.file.Fd()),
		PeerTxQLen:       -1,
	})
}

// randomMAC returns a locally administered unicast address.
func randomMAC() mac.Addr {
	var a mac.Addr
	_, _ = rand.Read(a[:]) // never fails
	a[0] = a[0]&^0x01 | 0x02
	return a
}

// hostLink is an existing host end.
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
	if a.Name != name { // the kernel also matches alternative names
		return nil, fmt.Errorf("look up link %s: %s has it as an alternative name", name, a.Name)
	}
	return &hostLink{name: name, index: a.Index, peer: a.ParentIndex, group: a.Group, attrs: a}, nil
}

// freeHostName returns the first unused host name of the attachment. A link that is not pending deletion means that the attachment exists. If a runtime
// creates attachments faster than the agent deletes links, all names belong to links that are pending deletion. freeHostName then deletes the first link
// itself, which also slows down the runtime.
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
