package k8sobjects

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
)

// Sliced holds the fields of a CiliumEndpoint that slices contain.
type Sliced struct {
	*cilium.Endpoint
	PodUID         string // of the Pod that owns the object; empty without one
	ServiceAccount string
	EncryptionKey  int
}

// errKey excludes a CiliumEndpoint from slices: the API server would reject the whole slice.
var errKey = errors.New("status.encryption.key: must be from 0 to " + strconv.Itoa(math.MaxUint8))

// SlicedEndpoint converts a CiliumEndpoint for a slice. It returns nil for an endpoint without addresses. It trims the object, which must not be used
// afterwards.
func SlicedEndpoint(o *ciliumv2.CiliumEndpoint) (*Sliced, error) {
	s := &Sliced{ServiceAccount: Intern(o.Status.ServiceAccount), EncryptionKey: o.Status.Encryption.Key}
	for _, owner := range o.OwnerReferences {
		if owner.Kind == "Pod" {
			s.PodUID = string(owner.UID)
		}
	}
	Trim(&o.ObjectMeta)
	row, err := fromCilium(o, 0)
	if err != nil {
		return nil, err
	}
	switch s.Endpoint = row.(*cilium.Endpoint); {
	case s.NumAddrs() == 0:
		return nil, nil
	case s.EncryptionKey < 0 || s.EncryptionKey > math.MaxUint8:
		return nil, errKey
	}
	return s, nil
}

// Entry returns the slice entry.
func (s *Sliced) Entry() ciliumv2.SlicedEndpoint {
	e := ciliumv2.SlicedEndpoint{Name: s.Name(), IdentityID: int64(s.Identity()), PodUID: s.PodUID, Networking: &ciliumv2.EndpointNetworking{},
		Encryption: ciliumv2.NodeEncryption{Key: s.EncryptionKey}, ServiceAccount: s.ServiceAccount,
		Origin: &ciliumv2.SliceOrigin{UID: s.UID(), Created: s.Created(), Node: s.Host()}}
	if node := s.Node(); node.IsValid() {
		e.Networking.Node = node.String()
	}
	for _, addr := range s.Addrs() {
		pairs := e.Networking.Addressing
		last := len(pairs) - 1
		switch {
		case addr.Is4():
			pairs = append(pairs, ciliumv2.AddressPair{IPv4: addr.String()})
		case last >= 0 && pairs[last].IPv6 == "":
			pairs[last].IPv6 = addr.String()
		default:
			pairs = append(pairs, ciliumv2.AddressPair{IPv6: addr.String()})
		}
		e.Networking.Addressing = pairs
	}
	for _, p := range s.Ports() {
		e.NamedPorts = append(e.NamedPorts, ciliumv2.NamedPort{Name: p.Name, Port: p.Number, Protocol: p.Protocol})
	}
	return e
}

// CiliumEndpointSlice converts a slice. Its rows equal the rows of its CiliumEndpoints. A slice without the fields by which agents validate its
// endpoints is rejected as a whole, so that the rows of its last good state stay. Other malformed endpoints are skipped, with an error of type
// [Partly].
func CiliumEndpointSlice(o *ciliumv2.CiliumEndpointSlice, version string) (*cilium.EndpointSlice, error) {
	row := &cilium.EndpointSlice{Name: o.Name, UID: string(o.UID), Namespace: Intern(o.PodNamespace)}
	row.Version, _ = strconv.ParseUint(version, 10, 64)
	var unread unusable
	for i := range o.Endpoints {
		path := field.NewPath("endpoints").Index(i)
		if origin := o.Endpoints[i].Origin; origin == nil || origin.UID == "" {
			return nil, field.Required(path.Child("waggle", "uid"), "the API server dropped it: install the definition of CiliumEndpointSlice again")
		}
		ep, err := sliceRow(path, row.Namespace, &o.Endpoints[i])
		if err != nil {
			unread.add(err)
			continue
		}
		row.Endpoints = append(row.Endpoints, ep)
	}
	slices.SortStableFunc(row.Endpoints, func(a, b *cilium.Endpoint) int { return strings.Compare(a.Key(), b.Key()) })
	row.Endpoints = slices.CompactFunc(row.Endpoints, func(a, b *cilium.Endpoint) bool { return a.Key() == b.Key() })
	return row, unread.err()
}

// sliceRow converts one endpoint. The names were validated with the CiliumEndpoint; here they only have to form a key.
func sliceRow(path *field.Path, namespace string, e *ciliumv2.SlicedEndpoint) (*cilium.Endpoint, error) {
	for _, name := range []string{namespace, e.Name} {
		if name == "" || len(name) > math.MaxUint8 || strings.Contains(name, "/") {
			return nil, field.Invalid(path.Child("name"), namespace+"/"+e.Name, "must be the name of a pod")
		}
	}
	o := ciliumv2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: e.Name, UID: types.UID(e.Origin.UID)},
		Status: ciliumv2.EndpointStatus{Networking: e.Networking, NamedPorts: e.NamedPorts}}
	if e.IdentityID != 0 {
		o.Status.Identity = &ciliumv2.EndpointIdentity{ID: e.IdentityID}
	}
	if e.Origin.Node != "" {
		o.Labels = map[string]string{ciliumv2.NodeLabel: e.Origin.Node}
	}
	if e.Origin.Created != 0 {
		o.CreationTimestamp = metav1.Unix(e.Origin.Created, 0)
	}
	ep, err := CiliumEndpoint(&o, 0)
	if err != nil {
		return nil, field.Invalid(path, e.Name, err.Error())
	}
	return ep, nil
}

// checkSlice converts a slice with well-formed metadata.
func checkSlice(o *ciliumv2.CiliumEndpointSlice) (Row, error) {
	return checked(&o.ObjectMeta, false, validation.NameIsDNSSubdomain, func() (Row, error) {
		row, err := CiliumEndpointSlice(o, o.ResourceVersion)
		if row == nil {
			return nil, err
		}
		return row, err
	})
}
