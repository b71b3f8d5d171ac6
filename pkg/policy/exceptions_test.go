package policy_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// exceptOne returns a peer that is every IPv4 address except the n-th of 10.0.0.0/8.
func exceptOne(n int) k8s.Peer {
	return k8s.Peer{IPBlock: netip.MustParsePrefix("0.0.0.0/0"), Except: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 32)}}
}

// TestFromKubernetes_EqualCIDRs: peers of a rule with the same CIDR become one, with the exceptions that all of them have.
func TestFromKubernetes_EqualCIDRs(t *testing.T) {
	t.Parallel()
	block := func(text string, excepts ...string) k8s.Peer {
		p := k8s.Peer{IPBlock: netip.MustParsePrefix(text)}
		for _, e := range excepts {
			p.Except = append(p.Except, netip.MustParsePrefix(e))
		}
		return p
	}
	var many []k8s.Peer
	for i := range 12_000 {
		many = append(many, exceptOne(i))
	}
	for name, c := range map[string]struct {
		peers []k8s.Peer
		want  string
	}{
		"one":              {[]k8s.Peer{block("10.0.0.0/8", "10.1.0.0/16")}, "[10.0.0.0/8 [10.1.0.0/16]]"},
		"others":           {[]k8s.Peer{block("10.0.0.0/8", "10.1.0.0/16"), block("10.0.0.0/9", "10.1.0.0/16")}, "[10.0.0.0/8 [10.1.0.0/16]] [10.0.0.0/9 [10.1.0.0/16]]"},
		"without any":      {[]k8s.Peer{block("10.0.0.0/8", "10.1.0.0/16"), block("10.0.0.0/8")}, "[10.0.0.0/8 []]"},
		"equal":            {[]k8s.Peer{block("10.0.0.0/8", "10.1.0.0/16", "10.2.0.0/16"), block("10.0.0.0/8", "10.2.0.0/16", "10.1.0.0/16")}, "[10.0.0.0/8 [10.1.0.0/16 10.2.0.0/16]]"},
		"equal in part":    {[]k8s.Peer{block("10.0.0.0/8", "10.1.0.0/16", "10.2.0.0/16"), block("10.0.0.0/8", "10.2.0.0/16", "10.3.0.0/16")}, "[10.0.0.0/8 [10.2.0.0/16]]"},
		"nested":           {[]k8s.Peer{block("10.0.0.0/8", "10.1.0.0/16"), block("10.0.0.0/8", "10.1.2.0/24", "10.1.3.0/24")}, "[10.0.0.0/8 [10.1.2.0/24 10.1.3.0/24]]"},
		"nested, one peer": {[]k8s.Peer{block("10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24"), block("10.0.0.0/8", "10.1.2.0/25")}, "[10.0.0.0/8 [10.1.2.0/25]]"},
		"host bits":        {[]k8s.Peer{block("10.0.0.1/8", "10.1.0.1/16"), block("10.0.0.2/8", "10.1.0.2/16")}, "[10.0.0.1/8 [10.1.0.0/16]]"},
		"many":             {many, "[0.0.0.0/0 []]"},
	} {
		p := policy.FromKubernetes(&k8s.NetworkPolicy{Namespace: "red", Name: "p", IsIngress: true, Ingress: []k8s.PolicyRule{{Peers: c.peers}}}, policy.Environment{})
		got := ""
		for i, one := range p.Parts[0].Rules[0].Peers.List {
			if i == 10 {
				got += " ..."
				break
			}
			if i > 0 {
				got += " "
			}
			got += fmt.Sprintf("[%s %v]", one.CIDR, one.Except)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestExceptions_Limit: beyond the limit, allow rules do not match CIDRs with exceptions, and deny rules match the excepted addresses as well.
func TestExceptions_Limit(t *testing.T) {
	t.Parallel()
	for n, beyond := range map[int]bool{1023: false, 1025: true} { // each rule's CIDR contains the exceptions of all rules: n * n pairs
		o := &k8s.NetworkPolicy{Namespace: "red", Name: "p", IsIngress: true}
		for i := range n {
			o.Ingress = append(o.Ingress, k8s.PolicyRule{Peers: []k8s.Peer{exceptOne(i)}})
		}
		o.Ingress = append(o.Ingress, k8s.PolicyRule{Peers: []k8s.Peer{{IPBlock: netip.MustParsePrefix("10.0.0.8/29")}}})
		p := policy.FromKubernetes(o, policy.Environment{})
		if got := len(p.Problems) == 1 && p.Problems[0].Path == "spec.ingress[0]" && p.Problems[0].Reason == policy.ReasonUnsupported; got != beyond || !beyond && len(p.Problems) > 0 {
			t.Errorf("%d rules: %+v", n, p.Problems)
		}
		want := policy.Allow
		if beyond {
			want = policy.Deny
		}
		q := ask(t, "in world>db 80/TCP", 0)
		for address, want := range map[string]policy.Verdict{"203.0.113.1": want, "10.0.0.9": policy.Allow} {
			q.Peer.Addr = netip.MustParseAddr(address)
			if got := policy.Evaluate([]*policy.Policy{p}, policy.Options{}, q); got.Verdict != want {
				t.Errorf("%d rules, %s: %+v, want %s", n, address, got, want)
			}
		}
	}
}

// TestExceptions_LimitOfDenies: beyond the limit, a deny rule also denies the exception that all of its policy's rules have.
func TestExceptions_LimitOfDenies(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]policy.Verdict{1000: policy.Allow, 1025: policy.Deny} {
		rules := ""
		for i := range n {
			rules += fmt.Sprintf("{toCIDRSet: [{cidr: 203.0.0.0/8, except: [203.0.113.0/24, 203.1.%d.%d/32]}]}, ", i/256, i%256)
		}
		policies := read(t, policy.Environment{}, cnp("endpointSelector: {}, egress: [{toEntities: [all]}], egressDeny: ["+rules+"]"))
		q := ask(t, "out db>world 80/TCP", 0)
		if got := policy.Evaluate(policies, policy.Options{}, q); got.Verdict != want {
			t.Errorf("%d rules: %+v, want %s", n, got.Verdict, want)
		}
	}
}
