package cilium

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unique"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/rootwatch"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// EndpointFields are the contents of a row for a CiliumEndpoint, as shown and stored.
type EndpointFields struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	UID       string       `json:"uid,omitempty"`
	Created   int64        `json:"created,omitempty"` // by the API server, in seconds since 1970; 0 when not known
	Identity  uint32       `json:"identity"`          // 0 when it has none yet
	Node      netip.Addr   `json:"node"`              // address of the pod's node; invalid when not known
	Addrs     []netip.Addr `json:"addrs,omitempty"`   // of the pod
	// Ports are the named ports of its containers. Of ports with the same name and protocol the first counts.
	Ports []k8s.ContainerPort `json:"ports,omitempty"`
	// Host names the node that wrote the object, from its label; empty when it has none.
	Host string `json:"host,omitempty"`
	// Written is the [Digest] of an object that this node writes; 0 for other objects.
	Written uint64 `json:"written,omitempty"`
}

// Endpoint is a CiliumEndpoint: any pod of the cluster, including pods of this node. A cluster may have 150,000 pods, so a row is two allocations: the
// struct (48 bytes) and its text. It holds only the fields that the datapath needs, and shares values that are equal for the pods of a node or a
// deployment. Rows are immutable; [NewEndpoint] creates them.
type Endpoint struct {
	text     string // "namespace/name", then the UID (16 bytes if it is a UUID), then the 16 bytes of the IPv6 address if there is one
	node     unique.Handle[endpointNode]
	more     unique.Handle[endpointMore] // zero for almost all rows without ports
	created  uint32                      // 0 if rareFields has it
	identity uint32
	ipv4     [4]byte
	layout   layout
}

// layout holds the end of the namespace and the end of the name in the text, and four flags.
type layout uint32

const (
	endBits        = 14
	maxEnd  layout = 1<<endBits - 1

	hasIPv4   layout = 1 << (2 * endBits)
	hasIPv6   layout = hasIPv4 << 1
	ipv6First layout = hasIPv4 << 2 // the IPv6 address is the first one
	hasUUID   layout = hasIPv4 << 3 // the UID is a UUID

	ofObject = maxEnd | maxEnd<<endBits | hasUUID // the bits that describe name and UID
)

func layoutOf(namespaceEnd, nameEnd int) layout {
	return layout(namespaceEnd)&maxEnd | layout(nameEnd)&maxEnd<<endBits
}

func (l layout) namespaceEnd() int { return int(l & maxEnd) }

func (l layout) nameEnd() int { return int(l >> endBits & maxEnd) }

func (l layout) has(flag layout) bool { return l&flag != 0 }

// endpointNode holds the values that are the same for all pods of a node.
type endpointNode struct {
	addr netip.Addr
	host string
}

// endpointPorts is a linked list of ports. Few distinct lists exist.
type endpointPorts struct {
	first k8s.ContainerPort
	rest  unique.Handle[endpointPorts] // zero at the end
}

// endpointMore holds fields that rows of pods of other nodes usually lack.
type endpointMore struct {
	ports unique.Handle[endpointPorts]
	rare  *rareFields // nil for almost all rows
}

// rareFields are fields that are set in few rows.
type rareFields struct {
	addrs   []netip.Addr // all addresses, if the row itself cannot hold them (more than one of a family)
	created int64        // if the row itself cannot hold it (negative, or after 2106)
	written uint64
}

// errLongName does not occur for objects of an API server, whose names have at most 253 bytes.
var errLongName = errors.New("namespace and name must not have more than 16,382 bytes")

// NewEndpoint returns a row. Namespace and name must not have more than 16,382 bytes together.
func NewEndpoint(f EndpointFields) *Endpoint {
	e := &Endpoint{identity: f.Identity, layout: layoutOf(len(f.Namespace), len(f.Namespace)+1+len(f.Name))}
	var ipv6 [16]byte
	rare := rareFields{written: f.Written}
	if slices.ContainsFunc(f.Addrs, func(addr netip.Addr) bool { return !e.hold(addr, &ipv6) }) {
		rare.addrs = slices.Clone(f.Addrs)
	}
	if e.created = uint32(f.Created); int64(e.created) != f.Created {
		e.created, rare.created = 0, f.Created
	}
	address := ipv6[:]
	if !e.layout.has(hasIPv6) {
		address = nil
	}
	if id, ok := parseUUID(f.UID); ok {
		e.layout |= hasUUID
		e.text = f.Namespace + "/" + f.Name + string(id[:]) + string(address)
	} else {
		e.text = f.Namespace + "/" + f.Name + f.UID + string(address)
	}
	if f.Node.IsValid() || f.Host != "" {
		e.node = unique.Make(endpointNode{f.Node, f.Host})
	}
	var more endpointMore
	for _, port := range slices.Backward(f.Ports) {
		more.ports = unique.Make(endpointPorts{port, more.ports})
	}
	if rare.addrs != nil || rare.created != 0 || rare.written != 0 {
		more.rare = &rareFields{rare.addrs, rare.created, rare.written}
	}
	if more != (endpointMore{}) {
		e.more = unique.Make(more)
	}
	return e
}

// hold adds an address if the row itself has a slot for it, and reports whether it has. The IPv6 slot is at the end of the text.
func (e *Endpoint) hold(addr netip.Addr, ipv6 *[16]byte) bool {
	switch {
	case addr.Is4() && !e.layout.has(hasIPv4):
		e.ipv4 = addr.As4()
		e.layout |= hasIPv4
	case addr.Is6() && addr.Zone() == "" && !e.layout.has(hasIPv6):
		*ipv6 = addr.As16()
		if !e.layout.has(hasIPv4) {
			e.layout |= ipv6First
		}
		e.layout |= hasIPv6
	default:
		return false
	}
	return true
}

// Key is "namespace/name".
func (e *Endpoint) Key() string { return e.text[:e.layout.nameEnd()] }

// Namespace is the namespace of the pod.
func (e *Endpoint) Namespace() string { return e.text[:e.layout.namespaceEnd()] }

// Name is the name of the pod.
func (e *Endpoint) Name() string {
	end := e.layout.nameEnd()
	return e.text[min(e.layout.namespaceEnd()+1, end):end]
}

// UID is the UID of the object.
func (e *Endpoint) UID() string {
	uid := e.text[e.layout.nameEnd():e.uidEnd()]
	if e.layout.has(hasUUID) {
		return formatUUID([16]byte([]byte(uid)))
	}
	return uid
}

func (e *Endpoint) uidEnd() int {
	if e.layout.has(hasIPv6) {
		return len(e.text) - 16
	}
	return len(e.text)
}

// SameObject reports whether two rows describe the same object: same name and same UID.
func (e *Endpoint) SameObject(o *Endpoint) bool {
	return e.text[:e.uidEnd()] == o.text[:o.uidEnd()] && e.layout&ofObject == o.layout&ofObject
}

// Created is the time at which the API server made the object, in seconds since 1970; 0 when not known.
func (e *Endpoint) Created() int64 {
	if rare := e.extra().rare; rare != nil && rare.created != 0 {
		return rare.created
	}
	return int64(e.created)
}

// Identity is 0 when the pod has none yet.
func (e *Endpoint) Identity() uint32 { return e.identity }

// Node is the address of the pod's node; invalid when not known.
func (e *Endpoint) Node() netip.Addr { return e.onNode().addr }

// Host names the node that wrote the object; empty when it has no label.
func (e *Endpoint) Host() string { return e.onNode().host }

func (e *Endpoint) onNode() (n endpointNode) {
	if e.node != (unique.Handle[endpointNode]{}) {
		n = e.node.Value()
	}
	return n
}

func (e *Endpoint) extra() (m endpointMore) {
	if e.more != (unique.Handle[endpointMore]{}) {
		m = e.more.Value()
	}
	return m
}

// Ports returns the named ports of the pod's containers. Of ports with the same name and protocol the first counts.
func (e *Endpoint) Ports() (list []k8s.ContainerPort) {
	for rest := e.extra().ports; rest != (unique.Handle[endpointPorts]{}); {
		ports := rest.Value()
		list, rest = append(list, ports.first), ports.rest
	}
	return list
}

// Written is the [Digest] of an object that this node writes; 0 for other objects.
func (e *Endpoint) Written() uint64 {
	if rare := e.extra().rare; rare != nil {
		return rare.written
	}
	return 0
}

// NumAddrs counts the addresses of the pod.
func (e *Endpoint) NumAddrs() (n int) {
	if many := e.manyAddrs(); many != nil {
		return len(many)
	}
	if e.layout.has(hasIPv4) {
		n++
	}
	if e.layout.has(hasIPv6) {
		n++
	}
	return n
}

// Addr returns address i of the pod, from 0.
func (e *Endpoint) Addr(i int) netip.Addr {
	if many := e.manyAddrs(); many != nil {
		return many[i]
	}
	if e.layout.has(hasIPv6) && (i == 0) == e.layout.has(ipv6First) {
		return netip.AddrFrom16([16]byte([]byte(e.text[e.uidEnd():])))
	}
	return netip.AddrFrom4(e.ipv4)
}

// Addrs returns a new list of all addresses.
func (e *Endpoint) Addrs() (list []netip.Addr) {
	for i := range e.NumAddrs() {
		list = append(list, e.Addr(i))
	}
	return list
}

// Has reports whether addr is an address of the pod.
func (e *Endpoint) Has(addr netip.Addr) bool { return e.IndexOf(addr) >= 0 }

// IndexOf returns the index of an address of the pod, or -1 if the pod does not have it.
func (e *Endpoint) IndexOf(addr netip.Addr) int {
	for i := range e.NumAddrs() {
		if e.Addr(i) == addr {
			return i
		}
	}
	return -1
}

// Fields returns the contents of the row.
func (e *Endpoint) Fields() EndpointFields {
	return EndpointFields{Namespace: e.Namespace(), Name: e.Name(), UID: e.UID(), Created: e.Created(), Identity: e.identity, Node: e.Node(), Addrs: e.Addrs(),
		Ports: e.Ports(), Host: e.Host(), Written: e.Written()}
}

// Replaces makes e share the text of the row that it replaces if the texts are equal: the tree of the table keeps the key of the first row with a name.
func (e *Endpoint) Replaces(old *Endpoint) {
	if e.text == old.text {
		e.text = old.text
	}
}

// Equal compares everything.
func (e *Endpoint) Equal(o *Endpoint) bool {
	a, b := *e, *o
	a.more, b.more = unique.Handle[endpointMore]{}, unique.Handle[endpointMore]{}
	return a == b && (e.more == o.more || e.extra().ports == o.extra().ports && e.Created() == o.Created() && e.Written() == o.Written() &&
		slices.Equal(e.manyAddrs(), o.manyAddrs()))
}

func (e *Endpoint) manyAddrs() []netip.Addr {
	if rare := e.extra().rare; rare != nil {
		return rare.addrs
	}
	return nil
}

// parseUUID parses the form in which an API server writes UIDs. It rejects other forms of the same UUID.
func parseUUID(text string) (id [16]byte, ok bool) {
	if len(text) != 36 {
		return id, false
	}
	var digits [32]byte
	n := 0
	for i := range len(text) {
		switch c := text[i]; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return id, false
			}
		case c >= '0' && c <= '9' || c >= 'a' && c <= 'f':
			digits[n] = c
			n++
		default:
			return id, false
		}
	}
	_, err := hex.Decode(id[:], digits[:])
	return id, err == nil
}

func formatUUID(id [16]byte) string {
	d := hex.EncodeToString(id[:])
	return d[:8] + "-" + d[8:12] + "-" + d[12:16] + "-" + d[16:20] + "-" + d[20:]
}

// MarshalJSON implements json.Marshaler.
func (e *Endpoint) MarshalJSON() ([]byte, error) { return json.Marshal(e.Fields()) }

// UnmarshalJSON implements json.Unmarshaler.
func (e *Endpoint) UnmarshalJSON(text []byte) error {
	return e.read(func(f any) error { return json.Unmarshal(text, f) })
}

// MarshalYAML implements yaml.Marshaler.
func (e *Endpoint) MarshalYAML() (any, error) { return e.Fields(), nil }

// UnmarshalYAML implements the interface of YAML decoders.
func (e *Endpoint) UnmarshalYAML(decode func(any) error) error { return e.read(decode) }

func (e *Endpoint) read(decode func(any) error) error {
	var f EndpointFields
	if err := decode(&f); err != nil {
		return err
	}
	if len(f.Namespace)+1+len(f.Name) > int(maxEnd) {
		return errLongName
	}
	*e = *NewEndpoint(f)
	return nil
}

// TableHeader implements statedb.TableWritable.
func (*Endpoint) TableHeader() []string {
	return []string{"CiliumEndpoint", "Identity", "Addresses", "Node"}
}

// TableRow implements statedb.TableWritable.
func (e *Endpoint) TableRow() []string {
	var addrs []string
	for _, a := range e.Addrs() {
		addrs = append(addrs, a.String())
	}
	node := "-"
	if addr := e.Node(); addr.IsValid() {
		node = addr.String()
	}
	return []string{e.Key(), strconv.FormatUint(uint64(e.identity), 10), strings.Join(addrs, ","), node}
}

var endpointIndex = indexes.Unique("name", indexes.String, (*Endpoint).Key) // the key is in the memory of the row

// EndpointByName finds a row by "namespace/name".
var EndpointByName = endpointIndex.Query

// NewEndpointTable makes the table "cilium-endpoints". It has no index by address, which would take 0.3 kB for each pod of the cluster: package podclaims
// finds rows by their addresses. A watch channel of a query closes after any change of the table, because channels of single rows would take more than 0.1 kB for
// each pod of the cluster.
func NewEndpointTable(db *statedb.DB) (statedb.RWTable[*Endpoint], error) {
	table, err := statedb.NewTable(db, "cilium-endpoints", endpointIndex)
	if err != nil {
		return nil, err
	}
	return table, rootwatch.Only(db, table)
}
