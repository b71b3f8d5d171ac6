package endpointmanager

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// evidence is a set of independent reasons to believe that the pod of an endpoint has ended.
type evidence uint8

const (
	linkGone      evidence = 1 << iota // neither its index nor its name is on the node
	namespaceGone                      // the path of ADD has no namespace or another one, or the kernel was booted again
	podGone                            // the API server knows no such pod on this node, or a younger sandbox replaces it
)

// enough reports whether at least two proofs hold. A single source may be wrong.
func (p evidence) enough() bool { return bits.OnesCount8(uint8(p)) >= 2 }

// String lists the proofs, as in "link,namespace".
func (p evidence) String() string {
	var names []string
	for i, name := range []string{"link", "namespace", "pod"} {
		if p&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// verdict is the result of one scan of an endpoint.
type verdict struct {
	evidence evidence
	// alive reports whether the link or the namespace exists. It outweighs all proofs.
	alive bool
	// fault is the reason to quarantine the endpoint; empty when its link is correct.
	fault string
}

// ended reports whether the pod has ended according to one scan.
func (v verdict) ended() bool { return !v.alive && v.evidence.enough() }

// doubt describes the proofs against an endpoint that still works.
func (v verdict) doubt(ep *endpoints.Endpoint) string {
	var list []string
	if v.evidence&namespaceGone != 0 {
		list = append(list, "its namespace is no longer at "+ep.NetnsPath)
	}
	if v.evidence&podGone != 0 {
		list = append(list, "pod "+ep.PodName()+" is not known on this node, or has a younger sandbox")
	}
	return strings.Join(list, "; ")
}

// links maps the index of each veth of the node to the veth.
type links map[int]link

// find finds the link of an endpoint. there is true also for a link that was renamed or created again; there and gone are false if the endpoint's file names no
// link. fault is the reason why the link cannot be used, empty if it can.
func (all links) find(ep *endpoints.Endpoint) (there, gone bool, fault string) {
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

// forItsLink reports whether an endpoint is in quarantine because of a fault of [links.of].
func forItsLink(ep *endpoints.Endpoint) bool {
	return strings.HasPrefix(ep.Quarantine, linkOf(ep)+" ")
}

// evaluate reports whether the namespace of an endpoint exists or is certainly lost. Neither is true when the agent cannot see the directory that it saw at ADD.
func (s observation) evaluate(ep *endpoints.Endpoint, boot string) (found, lost bool) {
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

// collectable reports whether proofs may remove an endpoint. A damaged file may name the wrong link or namespace, so its endpoint is removed by DEL, by GC or
// by an operator only.
func collectable(ep *endpoints.Endpoint) bool { return ep.Quarantine != damaged }
