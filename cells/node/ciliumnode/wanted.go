package ciliumnode

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/clusternodes"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/lastapplied"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
)

const (
	// Keys of the last-applied record: the CIDRs, and the names of the copied labels and annotations.
	recordCIDRs       = "spec.ipam.podCIDRs"
	recordLabels      = "labels"
	recordAnnotations = "annotations"
)

// wanted is the desired content of the CiliumNode.
type wanted struct {
	node        *k8s.Node
	local       *localnode.LocalNode // nil while this node does not know its addresses
	machine     machine
	writesCIDRs bool   // this agent writes the pod CIDRs
	receives    string // value of [ciliumv2.ReceivesAnnotation]; "" keeps the current value
	pods        *pods  // nil while the endpoints of this node are not known
}

// String returns a summary for the table.
func (w wanted) String() string {
	spec := w.spec()
	var parts []string
	for _, a := range spec.Addresses {
		parts = append(parts, a.Type+"="+a.IP)
	}
	if len(spec.IPAM.PodCIDRs) > 0 {
		parts = append(parts, "podCIDRs="+strings.Join(spec.IPAM.PodCIDRs, ","))
	}
	if w.receives != "" {
		parts = append(parts, "receives="+w.receives)
	}
	return strings.Join(parts, " ")
}

func (w wanted) owner() metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: w.node.Name, UID: types.UID(w.node.UID)}
}

// labels returns the labels of the Node and the label that names the manager of the object.
func (w wanted) labels() map[string]string {
	labels := maps.Clone(w.node.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[ciliumv2.ManagedByLabel] = ciliumv2.ManagedByUs
	return labels
}

// annotations returns the annotations of the Node in the domain cilium.io, the received encapsulations, and the pod ranges. have is the object; nil for a new
// one.
func (w wanted) annotations(have *ciliumv2.CiliumNode) map[string]string {
	out := map[string]string{}
	if have == nil {
		have = &ciliumv2.CiliumNode{}
	}
	if receives := cmp.Or(w.receives, have.Annotations[ciliumv2.ReceivesAnnotation]); receives != "" {
		out[ciliumv2.ReceivesAnnotation] = receives
	}
	if ranges := w.podRanges(have); ranges != "" {
		out[ciliumv2.PodRangesAnnotation] = ranges
	}
	for key, value := range w.node.Annotations {
		domain, _, hasDomain := strings.Cut(key, "/")
		if hasDomain && (domain == "cilium.io" || strings.HasSuffix(domain, ".cilium.io")) {
			out[key] = value
		}
	}
	return out
}

// spec returns the spec from the state of this node. Without local it contains only the boot id and the addresses of the Node.
func (w wanted) spec() ciliumv2.NodeSpec {
	spec := ciliumv2.NodeSpec{BootID: w.machine.bootID}
	for _, a := range w.node.Addresses {
		if a.Type == "InternalIP" || a.Type == "ExternalIP" {
			spec.Addresses = append(spec.Addresses, ciliumv2.NodeAddress{Type: a.Type, IP: a.Address})
		}
	}
	if w.local == nil {
		return spec
	}
	for _, f := range []localnode.Family{w.local.IPv4, w.local.IPv6} {
		if f.Router.IsValid() {
			spec.Addresses = append(spec.Addresses, ciliumv2.NodeAddress{Type: ciliumv2.CiliumInternalIP, IP: f.Router.String()})
		}
		if w.writesCIDRs && f.AllocRange.IsValid() {
			spec.IPAM.PodCIDRs = append(spec.IPAM.PodCIDRs, f.AllocRange.String())
		}
	}
	spec.Health = ciliumv2.AddressPair{IPv4: text(w.local.IPv4.Health), IPv6: text(w.local.IPv6.Health)}
	return spec
}

// publishable returns the spec without the router and health addresses that the admission policy waggle-own-addresses rejects: new
// addresses outside the pod CIDRs that the object has after the write. Other nodes do not use such an address. It follows when the CIDRs are assigned.
func (w wanted) publishable(have *ciliumv2.CiliumNode) ciliumv2.NodeSpec {
	spec := w.spec()
	cidrs := have.Spec.IPAM.PodCIDRs
	switch {
	case w.writesCIDRs && w.local != nil:
		cidrs = spec.IPAM.PodCIDRs
	case w.removesCIDRs(have):
		cidrs = nil
	}
	rejected := func(address string) bool {
		addr, err := netip.ParseAddr(address)
		return err == nil && !has(have, address) && !slices.ContainsFunc(cidrs, func(text string) bool {
			p, ok := clusternodes.ParseRange(text)
			return ok && p.Contains(addr)
		})
	}
	spec.Addresses = slices.DeleteFunc(spec.Addresses, func(a ciliumv2.NodeAddress) bool { return a.Type == ciliumv2.CiliumInternalIP && rejected(a.IP) })
	for _, address := range []*string{&spec.Health.IPv4, &spec.Health.IPv6} {
		if rejected(*address) {
			*address = ""
		}
	}
	return spec
}

// has reports whether the object has an address as one of the router or as a health address.
func has(have *ciliumv2.CiliumNode, address string) bool {
	return have.Spec.Health.IPv4 == address || have.Spec.Health.IPv6 == address ||
		slices.Contains(have.Spec.Addresses, ciliumv2.NodeAddress{Type: ciliumv2.CiliumInternalIP, IP: address})
}

// removesCIDRs reports whether the agent wrote the CIDRs of the object in another mode. They block the cluster role, which has not assigned them.
func (w wanted) removesCIDRs(have *ciliumv2.CiliumNode) bool {
	return !w.writesCIDRs && len(have.Spec.IPAM.PodCIDRs) > 0 &&
		lastapplied.Of(have.Annotations).Ours(recordCIDRs, strings.Join(have.Spec.IPAM.PodCIDRs, ","))
}

func text(addr netip.Addr) string {
	if !addr.IsValid() {
		return ""
	}
	return addr.String()
}

// object returns a new CiliumNode.
func (w wanted) object() *ciliumv2.CiliumNode {
	annotations := w.annotations(nil)
	annotations[lastapplied.Annotation] = w.record(nil).String()
	if text := w.machine.annotation("", w.local); text != "" {
		annotations[machineAnnotation] = text
	}
	return &ciliumv2.CiliumNode{Spec: w.publishable(&ciliumv2.CiliumNode{}), ObjectMeta: metav1.ObjectMeta{Name: w.node.Name, Labels: w.labels(),
		Annotations: annotations, OwnerReferences: []metav1.OwnerReference{w.owner()}}}
}

// record returns the last-applied record of the desired object; have is nil for a new object.
func (w wanted) record(have *ciliumv2.CiliumNode) lastapplied.Values {
	record := lastapplied.Values{recordLabels: keys(w.labels())}
	if names := keys(w.annotations(have)); names != "" {
		record[recordAnnotations] = names
	}
	spec := w.spec()
	switch {
	case !w.writesCIDRs:
	case w.local != nil:
		record[recordCIDRs] = strings.Join(spec.IPAM.PodCIDRs, ",")
	case have != nil:
		if old, ok := lastapplied.Of(have.Annotations)[recordCIDRs]; ok {
			record[recordCIDRs] = old // the value of the previous run stays until local is known
		}
	}
	return record
}

func keys(m map[string]string) string { return strings.Join(slices.Sorted(maps.Keys(m)), ",") }

// changes returns the merge patch from have to the desired object; empty without a difference. Fields with values unknown to this node stay.
func (w wanted) changes(have *ciliumv2.CiliumNode) map[string]any {
	changes := map[string]any{}
	if metadata := w.metadata(have); len(metadata) > 0 {
		changes["metadata"] = metadata
	}
	if spec := w.specChanges(have); len(spec) > 0 {
		changes["spec"] = spec
	}
	return changes
}

func (w wanted) metadata(have *ciliumv2.CiliumNode) map[string]any {
	metadata := map[string]any{}
	written := lastapplied.Of(have.Annotations)
	if labels := difference(have.Labels, w.labels(), written[recordLabels]); len(labels) > 0 {
		metadata["labels"] = labels
	}
	annotations := difference(have.Annotations, w.annotations(have), written[recordAnnotations])
	if record := w.record(have).String(); record != have.Annotations[lastapplied.Annotation] {
		annotations[lastapplied.Annotation] = record
	}
	if old := have.Annotations[machineAnnotation]; w.machine.annotation(old, w.local) != old {
		annotations[machineAnnotation] = w.machine.annotation(old, w.local)
	}
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	if owners := w.owners(have.OwnerReferences); !slices.Equal(owners, have.OwnerReferences) {
		metadata["ownerReferences"] = owners
	}
	return metadata
}

// difference returns the merge patch for have: desired values that differ, and nil for keys that were copied earlier and are no longer desired.
// All other keys belong to other writers.
func difference(have, want map[string]string, copied string) map[string]any {
	changes := map[string]any{}
	for key, value := range want {
		if old, ok := have[key]; !ok || old != value {
			changes[key] = value
		}
	}
	for key := range strings.SplitSeq(copied, ",") {
		_, wanted := want[key]
		if _, there := have[key]; there && !wanted {
			changes[key] = nil
		}
	}
	return changes
}

// owners returns the owner references of the object, with this Node in place of any other Node.
func (w wanted) owners(have []metav1.OwnerReference) []metav1.OwnerReference {
	owner := w.owner()
	var owners []metav1.OwnerReference
	found := false
	for _, o := range have {
		switch {
		case o.Kind != owner.Kind || o.APIVersion != owner.APIVersion:
			owners = append(owners, o)
		case o.UID == owner.UID && o.Name == owner.Name && !found:
			owners, found = append(owners, o), true // keeps flags that another writer may have set
		}
	}
	if !found {
		owners = append(owners, owner)
	}
	return owners
}

func (w wanted) specChanges(have *ciliumv2.CiliumNode) map[string]any {
	changes := map[string]any{}
	spec := w.publishable(have)
	if spec.BootID != "" && spec.BootID != have.Spec.BootID {
		changes["bootid"] = spec.BootID
	}
	if w.removesCIDRs(have) {
		changes["ipam"] = map[string]any{"podCIDRs": nil}
	}
	if w.local == nil {
		return changes
	}
	if !slices.Equal(spec.Addresses, have.Spec.Addresses) {
		changes["addresses"] = spec.Addresses
	}
	if spec.Health != have.Spec.Health {
		changes["health"] = map[string]any{"ipv4": orNil(spec.Health.IPv4), "ipv6": orNil(spec.Health.IPv6)}
	}
	if w.writesCIDRs && !slices.Equal(spec.IPAM.PodCIDRs, have.Spec.IPAM.PodCIDRs) {
		changes["ipam"] = map[string]any{"podCIDRs": spec.IPAM.PodCIDRs}
	}
	return changes
}

func orNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}
