package endpointmanager

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// proof is a set of independent reasons to believe that the pod of an endpoint has ended.
type proof uint8

const (
	linkGone      proof = 1 << iota // neither its index nor its name is on the node
	namespaceGone                   // where it was at ADD there is none, or another one; or the kernel was started again
	podGone                         // the API server knows no such pod on this node, or a younger sandbox stands for it
)

// enough are two: what one source says may be its own mistake.
func (p proof) enough() bool { return bits.OnesCount8(uint8(p)) >= 2 }

// String lists the proofs, as in "link,namespace".
func (p proof) String() string {
	var names []string
	for i, name := range []string{"link", "namespace", "pod"} {
		if p&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// verdict is what one look at an endpoint found.
type verdict struct {
	proofs proof
	// alive means that its link or its namespace is there. That outweighs all proofs.
	alive bool
	// fault is why the datapath cannot have it; empty when its link is as it should be.
	fault string
}

// ended tells whether the pod has ended, as far as one look can tell.
func (v verdict) ended() bool { return !v.alive && v.proofs.enough() }

// doubt is what a verdict says against an endpoint that works.
func (v verdict) doubt(ep *endpoints.Endpoint) string {
	var list []string
	if v.proofs&namespaceGone != 0 {
		list = append(list, "its namespace is no longer at "+ep.NetnsPath)
	}
	if v.proofs&podGone != 0 {
		list = append(list, "pod "+ep.PodName()+" is not known on this node, or has a younger sandbox")
	}
	return strings.Join(list, "; ")
}

// links are the veths of the node by their index.
type links map[int]link

// of finds the link of an endpoint. It is there, also when somebody changed it, or gone, or neither when the file did not
// tell which it was. Fault says why it cannot be used; empty when it can.
func (all links) of(ep *endpoints.Endpoint) (there, gone bool, fault string) {
	at, found := all[ep.HostIfIndex]
	switch {
	case found && at.name == ep.HostIfName:
		return true, false, ""
	case found && at.mac == ep.HostMAC && !at.mac.IsZero():
		return true, false, fmt.Sprintf("%s is called %s now", linkOf(ep), at.name)
	}
	for index, other := range all {
		if other.name == ep.HostIfName {
			return true, false, fmt.Sprintf("%s has index %d now", linkOf(ep), index)
		}
	}
	return false, ep.HostIfName != "" && ep.HostIfIndex > 0, linkOf(ep) + " is gone"
}

func linkOf(ep *endpoints.Endpoint) string {
	return fmt.Sprintf("link %s with index %d", ep.HostIfName, ep.HostIfIndex)
}

// forItsLink tells whether an endpoint is in quarantine because of what [links.of] found.
func forItsLink(ep *endpoints.Endpoint) bool {
	return strings.HasPrefix(ep.Quarantine, linkOf(ep)+" ")
}

// judge tells whether the namespace of an endpoint is there, or is certain to be lost. Neither is true
// when the agent does not see what the runtime saw.
func (s sight) judge(ep *endpoints.Endpoint, boot string) (found, lost bool) {
	if ep.Boot != "" && boot != "" && ep.Boot != boot {
		return false, true
	}
	switch {
	case ep.NetnsInode == 0:
		return false, false
	case s.inode == ep.NetnsInode:
		return true, false
	case ep.NetnsDir == "" || s.dir != ep.NetnsDir:
		return false, false
	}
	return false, s.gone || s.inode != 0
}

// collectable tells whether proofs may end an endpoint at all. Of a damaged file nobody knows whether it names the right
// link and namespace: such an endpoint goes by DEL, by GC, or by hand.
func collectable(ep *endpoints.Endpoint) bool { return ep.Quarantine != damaged }
