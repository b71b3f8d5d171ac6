package policy

import (
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/identity"
)

// Environment is what a policy's meaning depends on besides its own text.
type Environment struct {
	// Cluster is the name of the cluster, by which the entity "cluster" knows its pods.
	Cluster string
	// Keeps tells whether a label "source:key" is part of identities; nil: all are. See [labels.Filter].
	Keeps func(label string) bool
	// APIServerHere says that the API server runs on this node, so that the entity "kube-apiserver" is its host too.
	APIServerHere bool
	// APIServers are the other addresses of the API server. Outside the cluster they are known by nothing else; on other nodes
	// they have an identity of their own as well.
	APIServers []netip.Addr
	// AllowL7Ports is --l7-rules=allow-port: rules that allow some requests on a port allow all of its connections, as requests are not inspected.
	AllowL7Ports bool
	// CIDRGroups are those that exist. They are read while a policy is parsed, and not kept.
	CIDRGroups CIDRGroups
	// GroupsUnread says that nobody knows which exist. Rules that refer to them fail closed.
	GroupsUnread bool
	// IPv4Only and IPv6Only say that one family alone is enabled, whose world is identity 2.
	IPv4Only, IPv6Only bool
}

// SameAPIServers tells whether "kube-apiserver" means the same in both.
func (e *Environment) SameAPIServers(o *Environment) bool {
	return e.APIServerHere == o.APIServerHere && slices.Equal(e.APIServers, o.APIServers)
}

// apiServers are the peers that "kube-apiserver" means.
func (e *Environment) apiServers() []Peer {
	known := Peer{Identities: []uint32{identity.KubeAPIServer}}
	if e.APIServerHere {
		known.Identities = append(known.Identities, identity.Host)
	}
	peers := []Peer{known}
	for _, addr := range e.APIServers {
		peers = append(peers, Peer{CIDR: netip.PrefixFrom(addr, addr.BitLen()), Scope: Everyone})
	}
	return peers
}

// isAPIServer tells whether a choice is that of the entity "kube-apiserver" in other words.
func (s *Selector) isAPIServer() bool {
	if len(s.Requirements) != 1 {
		return false
	}
	r := &s.Requirements[0]
	return r.Source == endpoint.SourceReserved && r.Key == identity.Name(identity.KubeAPIServer) &&
		(r.Operator == Exists || r.Operator == In && slices.Equal(r.Values, []string{""}))
}

// keeps tells whether a peer can be known by a label. A label of any source is one of Kubernetes for those who can have both.
func (e *Environment) keeps(r *Requirement) bool {
	source := r.Source
	if source == AnySource {
		source = sourceK8s
	}
	return e.Keeps == nil || e.Keeps(source+":"+r.Key)
}

// ModeAnnotation on a policy object chooses what becomes of it; the only value is [ModeAudit].
const (
	ModeAnnotation = "policy.waggle.io/mode"
	ModeAudit      = "audit"
)

// audit reads the annotation.
func (p *Policy) audit(annotations map[string]string) {
	switch mode, found := annotations[ModeAnnotation]; {
	case mode == ModeAudit:
		p.Audit = true
	case found:
		p.invalid("metadata.annotations", "the annotation "+ModeAnnotation+" is "+quote(mode)+
			": the policy is not in audit mode; write "+ModeAudit+" or leave the annotation out")
	}
}
