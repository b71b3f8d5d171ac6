package policyexplain

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/policy"
)

// Kernel reads the maps of the datapath.
type Kernel interface {
	Facts(endpoint uint16) (bpf.EndpointFacts, error)
	// Identity returns the identity of an address; 0 if unknown.
	Identity(addr netip.Addr) (uint32, error)
	// CIDRs returns the numbers of the named CIDRs that contain an address, the longest first.
	CIDRs(addr netip.Addr) ([]uint32, error)
	// Classes returns the classes of an identity; zero if the identity has none.
	Classes(identity uint32) (bpf.IdentityClasses, error)
	// Entry and Range look up an entry of a policy.
	Entry(key bpf.PolicyKey) (e bpf.PolicyEntry, found bool, err error)
	Range(key bpf.PolicyRangeKey) (e bpf.PolicyEntry, found bool, err error)
	// Between describes the tracked connections from one address to a port of another address, up to a limit.
	Between(from, to netip.Addr, protocol uint8, port uint16) ([]string, error)
}

// compare evaluates the lookup with the kernel's maps, and compares the verdict with the evaluator's.
func (s *side) compare(v *View, kernel Kernel) {
	if !s.here() {
		return
	}
	k, differs, err := s.ask(v, kernel)
	if err != nil {
		s.model.Kernel = models.PolicyKernel{Message: err.Error()}
		return
	}
	if k.Verdict != s.model.Verdict {
		differs = append(differs, fmt.Sprintf("the maps say %s, the policies %s", k.Verdict, s.model.Verdict))
	}
	k.Agrees, k.Message = len(differs) == 0, strings.Join(differs, "; ")
	s.model.Kernel = k
}

// ask computes the verdict as the datapath does, and returns the differences between the maps and the tables.
func (s *side) ask(v *View, kernel Kernel) (k models.PolicyKernel, differs []string, err error) {
	if s.row == nil {
		return k, nil, errors.New("the endpoint has no policy in the kernel yet: until then everything is dropped")
	}
	facts, err := kernel.Facts(s.row.EndpointID)
	if err != nil {
		return k, nil, err
	}
	id, shape, wanted := facts.PolicyIngress, facts.ShapeIngress, s.row.Ingress.Enforced
	if s.question.Direction == policy.Egress {
		id, shape, wanted = facts.PolicyEgress, facts.ShapeEgress, s.row.Egress.Enforced
	}
	k.PolicyID = int64(id)
	if id != wanted.ID || shape != wanted.Shape {
		differs = append(differs, fmt.Sprintf("the endpoint has policy %d (shape %#x) in the kernel and %d (shape %#x) in the table",
			id, shape, wanted.ID, wanted.Shape))
	}
	peer, cidrs, more, err := v.taken(kernel, &s.question)
	if err != nil {
		return k, nil, err
	}
	differs = append(differs, more...)
	switch {
	case id == bpf.PolicyAllowAll:
		k.Verdict, k.Entry = models.PolicyVerdictAllowed, "everything is, by this id"
		return k, differs, nil
	case id == bpf.PolicyDropAll || peer == 0:
		k.Verdict = models.PolicyVerdictDenied
		return k, differs, nil
	case shape&bpf.ShapeLocalhost != 0 && peer == identity.Host:
		k.Verdict, k.Entry = models.PolicyVerdictAllowed, "the local host is allowed regardless of entries"
		return k, differs, nil
	}
	k.Verdict, k.Entry, err = v.probe(kernel, &lookup{id: id, shape: shape, identity: peer, cidrs: cidrs,
		outside: policy.Outside.Includes(peer, v.Options), protocol: s.question.Protocol, port: s.question.Port})
	return k, differs, err
}

// taken returns the identity and the CIDRs of the peer's address in the kernel. For a peer without an address it returns the peer's identity.
func (v *View) taken(kernel Kernel, q *policy.Question) (id uint32, cidrs []uint32, differs []string, err error) {
	if !q.Peer.Addr.IsValid() {
		return q.Peer.Identity, nil, nil, nil
	}
	if id, err = kernel.Identity(q.Peer.Addr); err != nil {
		return id, nil, nil, err
	}
	if cidrs, err = kernel.CIDRs(q.Peer.Addr); err != nil {
		return id, nil, nil, err
	}
	if id != q.Peer.Identity {
		differs = append(differs, fmt.Sprintf("the kernel takes %s for identity %d, the tables for %d", q.Peer.Addr, id, q.Peer.Identity))
	}
	var cidr, want uint32
	if row, found := v.cidrOf(q.Peer.Addr); found {
		want = row.Identity
	}
	if len(cidrs) > 0 {
		cidr = cidrs[0]
	}
	if cidr != want {
		differs = append(differs, fmt.Sprintf("the kernel takes %s for CIDR %d, the tables for %d", q.Peer.Addr, cidr, want))
	}
	return id, cidrs, differs, nil
}

// lookup is a policy lookup of the datapath.
type lookup struct {
	id, shape uint32
	identity  uint32
	classes   bpf.IdentityClasses // of identity; set by [lookup.asked]
	cidrs     []uint32            // the longest first
	outside   bool
	protocol  uint8
	port      uint16
}

// probe looks up all kinds of keys that the shape has. Any deny denies. The returned entry is the most specific one with the verdict.
func (v *View) probe(kernel Kernel, l *lookup) (models.PolicyVerdict, string, error) {
	var allow, deny string
	asked, err := l.asked(kernel)
	if err != nil {
		return "", "", err
	}
	for _, one := range asked {
		found, err := l.entries(kernel, one.kind, one.about)
		if err != nil {
			return "", "", err
		}
		for _, hit := range found {
			text := hit.text + v.cookie(l.id, hit.Rule)
			if hit.Deny != 0 && deny == "" {
				deny = text + ", denies"
			} else if hit.Deny == 0 && allow == "" {
				allow = text + ", allows"
			}
		}
	}
	switch {
	case deny != "":
		return models.PolicyVerdictDenied, deny, nil
	case allow != "":
		return models.PolicyVerdictAllowed, allow, nil
	}
	return models.PolicyVerdictDenied, "", nil
}

// about is a kind of entries and the identity in the key of a lookup.
type about struct {
	kind  bpf.PolicyKind
	about uint32
}

// asked lists the lookups of the datapath, the most specific first.
func (l *lookup) asked(kernel Kernel) (list []about, err error) {
	for _, cidr := range l.cidrs {
		if l.outside {
			list = append(list, about{bpf.PolicyCIDROutside, cidr})
		}
		list = append(list, about{bpf.PolicyCIDR, cidr})
		if l.shape&bpf.ShapeNested == 0 {
			break
		}
		if l.shape&bpf.ShapeStops == 0 {
			continue
		}
		_, stops, err := kernel.Entry(bpf.NewPolicyKey(l.id, bpf.PolicyCIDR, cidr, bpf.PolicyProtocol, bpf.PolicyStop, 0))
		if err != nil {
			return nil, err
		}
		if stops {
			break
		}
	}
	list = append(list, about{bpf.PolicyIdentity, l.identity})
	if l.shape&bpf.ShapeClasses != 0 {
		of, err := kernel.Classes(l.identity)
		if err != nil {
			return nil, err
		}
		if l.classes = of; of.Cluster != 0 {
			list = append(list, about{bpf.PolicyClass, of.Namespace}, about{bpf.PolicyClass, of.Cluster})
		}
	}
	return append(list, about{bpf.PolicyAny, 0}), nil
}

// hit is an entry that a lookup found.
type hit struct {
	bpf.PolicyEntry
	text string
}

func (l *lookup) entries(kernel Kernel, kind bpf.PolicyKind, about uint32) (found []hit, err error) {
	who := map[bpf.PolicyKind]string{bpf.PolicyAny: "all peers", bpf.PolicyIdentity: fmt.Sprintf("identity %d", about),
		bpf.PolicyClass: map[bool]string{true: "all pods", false: "pods of the namespace"}[about == l.classes.Cluster],
		bpf.PolicyCIDR:  fmt.Sprintf("CIDR %d", about), bpf.PolicyCIDROutside: fmt.Sprintf("CIDR %d outside the cluster", about)}[kind]
	for _, level := range []bpf.PolicyLevel{bpf.PolicyPort, bpf.PolicyProtocol, bpf.PolicyAll} {
		if l.shape&bpf.ShapeEntry(kind, level) == 0 {
			continue
		}
		e, ok, err := kernel.Entry(bpf.NewPolicyKey(l.id, kind, about, level, l.protocol, l.port))
		if err != nil {
			return nil, err
		}
		if ok {
			ports := map[bpf.PolicyLevel]string{bpf.PolicyPort: fmt.Sprintf("%s %d", policy.ProtocolName(l.protocol), l.port),
				bpf.PolicyProtocol: policy.ProtocolName(l.protocol) + " all ports", bpf.PolicyAll: "everything"}[level]
			found = append(found, hit{e, who + ", " + ports})
		}
	}
	if l.shape&bpf.ShapeRange(kind) == 0 {
		return found, nil
	}
	e, ok, err := kernel.Range(bpf.NewPolicyRangeKey(l.id, kind, about, l.protocol, l.port, 16))
	if ok {
		found = append(found, hit{e, fmt.Sprintf("%s, a range with %s %d", who, policy.ProtocolName(l.protocol), l.port)})
	}
	return found, err
}
