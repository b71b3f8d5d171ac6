package policy

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/labels"
)

// Environment contains the inputs of parsing besides the policy's own text.
type Environment struct {
	// Cluster is the name of the cluster. The entity "cluster" selects pods by this name.
	Cluster string
	// Keeps reports whether a label "source:key" is part of identities; if nil, all labels are. See [labels.Filter].
	Keeps func(label string) bool
	// APIServerHere is set if the API server runs on this node. The entity "kube-apiserver" then includes the local host.
	APIServerHere bool
	// APIServers are the other addresses of the API server. Outside the cluster only the address identifies an API server; on other nodes it also has the
	// identity [identity.KubeAPIServer].
	APIServers []netip.Addr
	// AllowL7Ports is --l7-rules=allow-port: a rule that allows some requests on a port allows all connections on the port, because requests are not
	// inspected.
	AllowL7Ports bool
	// CIDRGroups are the existing groups. Parsing reads them and does not retain the map.
	CIDRGroups CIDRGroups
	// GroupsUnread is set if the existing groups are unknown. Rules that refer to groups then fail closed.
	GroupsUnread bool
	// Services finds a Service by its name while a policy is parsed; nil: no Service exists.
	Services func(ServiceName) Service
	// ServicesIn yields the names of the Services in a namespace, sorted, and their [k8s.Service.Labelled] while a policy is parsed; nil: no Service exists.
	ServicesIn func(namespace string) iter.Seq2[string, string]
	// ServicesUnread is set if the existing Services are unknown. Rules that refer to Services then fail closed.
	ServicesUnread bool
	// SlicesUnread is set if the existing EndpointSlices are unknown. Rules that refer to Services without a selector then fail closed.
	SlicesUnread bool
	// WithoutSlices is set if the reader does not follow EndpointSlices, and only needs the problems of policies. Services without a selector then have no
	// addresses, and no problem is reported for that.
	WithoutSlices bool
	// IPv4Only and IPv6Only are set if only one family is enabled. Identity 2 is then the world of that family.
	IPv4Only, IPv6Only bool
	// FamiliesUnknown is set if the reader does not know the enabled families of the nodes, and no problem that depends on them is reported.
	FamiliesUnknown bool
}

// SameAPIServers reports whether "kube-apiserver" selects the same peers in both environments.
func (e *Environment) SameAPIServers(o *Environment) bool {
	return e.APIServerHere == o.APIServerHere && slices.Equal(e.APIServers, o.APIServers)
}

// apiServers returns the peers of the entity "kube-apiserver".
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

// isAPIServer reports whether a selector is another notation of the entity "kube-apiserver".
func (s *Selector) isAPIServer() bool {
	if len(s.Requirements) != 1 {
		return false
	}
	r := &s.Requirements[0]
	return r.Source == labels.SourceReserved && r.Key == identity.Name(identity.KubeAPIServer) &&
		(r.Operator == Exists || r.Operator == In && slices.Equal(r.Values, []string{""}))
}

// keeps reports whether the label of a requirement is part of identities. [AnySource] is checked as the source k8s.
func (e *Environment) keeps(r *Requirement) bool {
	source := r.Source
	if source == AnySource {
		source = sourceK8s
	}
	return e.Keeps == nil || e.Keeps(source+":"+r.Key)
}

// ModeAnnotation on a policy object selects its mode. The only value is [ModeAudit].
const (
	ModeAnnotation = "policy.waggle.io/mode"
	ModeAudit      = "audit"
)

// audit sets the mode from the annotation.
func (p *Policy) audit(annotations map[string]string) {
	switch mode, found := annotations[ModeAnnotation]; {
	case mode == ModeAudit:
		p.Audit = true
	case found:
		p.invalid("metadata.annotations", "the annotation "+ModeAnnotation+" is "+quote(mode)+
			": the policy is not in audit mode; write "+ModeAudit+" or leave the annotation out")
	}
}
