package k8sobjects

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// CiliumNode converts a CiliumNode. Addresses and CIDRs stay as written: their readers validate them. A key outside of 0 to 255 is read as 0, so that the node
// keeps its addresses.
func CiliumNode(o *ciliumv2.CiliumNode) *cilium.Node {
	row := &cilium.Node{Name: o.Name, UID: string(o.UID), Created: created(&o.ObjectMeta), Annotations: o.Annotations,
		HealthIPv4: o.Spec.Health.IPv4, HealthIPv6: o.Spec.Health.IPv6}
	if key := o.Spec.Encrypt.Key; key > 0 && key <= math.MaxUint8 {
		row.EncryptionKey = uint8(key)
	}
	if len(o.Spec.IPAM.PodCIDRs) > 0 {
		row.PodCIDRs = o.Spec.IPAM.PodCIDRs
	}
	for _, a := range o.Spec.Addresses {
		row.Addresses = append(row.Addresses, cilium.NodeAddress{Type: Intern(a.Type), IP: a.IP})
	}
	return row
}

// maxAddrs limits the addresses of one CiliumEndpoint, so that one object of a node cannot fill a slice, or take seconds to process: the time is quadratic in
// the number of addresses. A pod has one of each family.
const maxAddrs = 8

var errManyAddrs = errors.New("status.networking.addressing: more than " + strconv.Itoa(maxAddrs) + " addresses")

// CiliumEndpoint converts a CiliumEndpoint; written is the digest of an object that this node writes. Without a status, the row has neither identity
// nor addresses.
func CiliumEndpoint(o *ciliumv2.CiliumEndpoint, written uint64) (*cilium.Endpoint, error) {
	row := cilium.EndpointFields{Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), Created: created(&o.ObjectMeta), Written: written,
		Ports: ciliumPorts(o.Status.NamedPorts), Host: o.Labels[ciliumv2.NodeLabel]}
	status := field.NewPath("status")
	if i := o.Status.Identity; i != nil {
		if i.ID < 0 || i.ID > math.MaxUint32 {
			return nil, field.Invalid(status.Child("identity", "id"), i.ID, "must be a number of 32 bits")
		}
		row.Identity = uint32(i.ID)
	}
	n := o.Status.Networking
	if n == nil {
		return cilium.NewEndpoint(row), nil
	}
	var err error
	if n.Node != "" {
		if row.Node, err = parseAddr(status.Child("networking", "node"), n.Node); err != nil {
			return nil, err
		}
	}
	var texts []string
	for _, pair := range n.Addressing {
		for _, text := range []string{pair.IPv4, pair.IPv6} {
			if text != "" {
				texts = append(texts, text)
			}
		}
	}
	if len(texts) > maxAddrs {
		return nil, errManyAddrs
	}
	if row.Addrs, err = parseAddrs(status.Child("networking", "addressing"), texts); err != nil {
		return nil, err
	}
	return cilium.NewEndpoint(row), nil
}

// CiliumIdentity converts a CiliumIdentity, whose name is its number.
func CiliumIdentity(o *ciliumv2.CiliumIdentity) (*cilium.Identity, error) {
	id, err := strconv.ParseUint(o.Name, 10, 32)
	if err != nil || strconv.FormatUint(id, 10) != o.Name || id == 0 {
		return nil, field.Invalid(field.NewPath("metadata", "name"), o.Name, "must be a number from 1 to 4294967295")
	}
	return &cilium.Identity{ID: uint32(id), UID: string(o.UID), Labels: internAll(o.SecurityLabels)}, nil
}

// CiliumPolicy converts a policy of either scope.
func CiliumPolicy(meta *metav1.ObjectMeta, spec, specs json.RawMessage) (*cilium.Policy, error) {
	row := &cilium.Policy{Namespace: meta.Namespace, Name: meta.Name, UID: string(meta.UID), Generation: meta.Generation,
		Annotations: meta.Annotations}
	var err error
	if row.Spec, err = compact("spec", spec); err == nil {
		row.Specs, err = compact("specs", specs)
	}
	return row, err
}

// CIDRGroup converts a CiliumCIDRGroup. It skips invalid entries, with an error of type [Partly].
func CIDRGroup(o *ciliumv2.CiliumCIDRGroup) (*cilium.CIDRGroup, error) {
	row := &cilium.CIDRGroup{Name: o.Name, UID: string(o.UID), Labels: o.Labels}
	var unread unusable
	row.CIDRs = readEach(field.NewPath("spec", "externalCIDRs"), o.Spec.ExternalCIDRs, parseBlock, func(problem string) {
		unread.add(errors.New(problem))
	})
	slices.SortFunc(row.CIDRs, netip.Prefix.Compare)
	row.CIDRs, row.Problems = slices.Compact(row.CIDRs), unread.texts
	return row, unread.err()
}

// parseBlock parses a CIDR, or an address as the CIDR of only that address.
func parseBlock(path *field.Path, text string) (netip.Prefix, error) {
	if addr, err := parseAddr(path, text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	return parsePrefix(path, text)
}

// compact normalizes JSON, so that equal values have equal texts, and returns nil for null.
func compact(name string, raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return out.Bytes(), nil
}
