package ciliumnode

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// pods are the addresses of the endpoints of this node.
type pods struct{ addrs []netip.Addr }

// in reports whether an endpoint has an address in a range.
func (p *pods) in(cidr netip.Prefix) bool { return slices.ContainsFunc(p.addrs, cidr.Contains) }

// endpoints returns the addresses of the endpoints; nil before the endpoints of the previous run are known. While the row of the CiliumNode lists a former
// range, it watches the endpoints, because the last one in the range may be deleted. Otherwise it does not: each wake queries the API server.
func (c *controller) endpoints(txn statedb.ReadTxn, watch *statedb.WatchSet, own *cilium.Node, w wanted) *pods {
	complete, initialized := c.Endpoints.Initialized(txn)
	if !complete {
		watch.Add(initialized)
		return nil
	}
	rows, changed := c.Endpoints.AllWatch(txn)
	p := &pods{}
	for ep := range rows {
		for _, addr := range []netip.Addr{ep.IPv4, ep.IPv6} {
			if addr.IsValid() {
				p.addrs = append(p.addrs, addr)
			}
		}
	}
	if own != nil && slices.ContainsFunc(listed(own.Annotations), func(text string) bool { return !w.has(text) }) {
		watch.Add(changed)
	}
	return p
}

// listed returns the ranges that annotations of a CiliumNode list.
func listed(annotations map[string]string) []string {
	text := annotations[ciliumv2.PodRangesAnnotation]
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// has reports whether a text is a current range of this node.
func (w wanted) has(text string) bool {
	p, ok := clusternodes.ParseRange(text)
	return ok && w.local != nil && (p == w.local.IPv4.AllocRange.Masked() || p == w.local.IPv6.AllocRange.Masked())
}

// podRanges returns the value of [ciliumv2.PodRangesAnnotation]: the ranges that the object lists or will have, in their original form, if they belong to this
// node or contain an address of one of its pods. Until the ranges and pods of this node are known, the value in the object stays.
func (w wanted) podRanges(have *ciliumv2.CiliumNode) string {
	if w.local == nil || w.pods == nil {
		return have.Annotations[ciliumv2.PodRangesAnnotation]
	}
	offered := have.Spec.IPAM.PodCIDRs
	if w.writesCIDRs {
		offered = w.spec().IPAM.PodCIDRs
	}
	var ranges []string
	for _, text := range slices.Concat(listed(have.Annotations), offered) {
		p, ok := clusternodes.ParseRange(text)
		if ok && !slices.Contains(ranges, text) && (w.has(text) || w.pods.in(p)) {
			ranges = append(ranges, text)
		}
	}
	return strings.Join(ranges, ",")
}
