package ciliumendpoints

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// object is the desired CiliumEndpoint of a pod.
type object struct {
	Namespace      string            `json:"namespace"`
	Name           string            `json:"name"`
	PodUID         string            `json:"podUID"` // UID of the pod that owns the object
	EndpointID     uint16            `json:"endpointID"`
	Attachment     string            `json:"attachment"` // "<container id>:<interface>"
	ContainerID    string            `json:"containerID"`
	Identity       uint32            `json:"identity,omitempty"` // 0 while the endpoint has no identity of the cluster
	Labels         map[string]string `json:"labels,omitempty"`   // of the identity; must not be modified in place
	IPv4           netip.Addr        `json:"ipv4"`               // invalid when the pod has none
	IPv6           netip.Addr        `json:"ipv6"`
	Node           netip.Addr        `json:"node"`
	ServiceAccount string            `json:"serviceAccount,omitempty"`
	// Ports are the named ports of the pod, sorted. They must not be modified in place.
	Ports  []k8s.ContainerPort `json:"ports,omitempty"`
	State  string              `json:"state"`         // "ready" or "not-ready"
	UID    string              `json:"uid,omitempty"` // UID of the object; set by the reconciler, empty when unknown
	Status reconciler.Status   `json:"status"`
}

// Key returns "namespace/name".
func (o *object) Key() string { return o.Namespace + "/" + o.Name }

// Clone returns a copy that may be modified and inserted.
func (o *object) Clone() *object { c := *o; return &c }

// GetStatus returns the status of the row.
func (o *object) GetStatus() reconciler.Status { return o.Status }

// WithStatus sets the status of a clone and returns it.
func (o *object) WithStatus(s reconciler.Status) *object { o.Status = s; return o }

// Equal reports whether the desired parts are equal.
func (o *object) Equal(p *object) bool {
	return o.Namespace == p.Namespace && o.Name == p.Name && o.PodUID == p.PodUID && o.EndpointID == p.EndpointID &&
		o.Attachment == p.Attachment && o.ContainerID == p.ContainerID && o.Identity == p.Identity && o.IPv4 == p.IPv4 &&
		o.IPv6 == p.IPv6 && o.Node == p.Node && o.ServiceAccount == p.ServiceAccount && o.State == p.State &&
		maps.Equal(o.Labels, p.Labels) && slices.Equal(o.Ports, p.Ports)
}

// addrs returns the addresses of the pod.
func (o *object) addrs() (list []netip.Addr) {
	for _, a := range []netip.Addr{o.IPv4, o.IPv6} {
		if a.IsValid() {
			list = append(list, a)
		}
	}
	return list
}

// TableHeader implements statedb.TableWritable.
func (*object) TableHeader() []string {
	return []string{"CiliumEndpoint", "Endpoint", "Identity", "State", "Status", "Error"}
}

// TableRow implements statedb.TableWritable.
func (o *object) TableRow() []string {
	identity, message := "-", "-"
	if o.Identity != 0 {
		identity = strconv.FormatUint(uint64(o.Identity), 10)
	}
	if text := o.Status.GetError(); text != "" {
		message = text
	}
	return []string{o.Key(), strconv.Itoa(int(o.EndpointID)), identity, o.State, o.Status.Kind.String(), message}
}

var nameIndex = indexes.Unique("name", indexes.String, (*object).Key)

var byName = nameIndex.Query

// initialize completes the table when all endpoints have their rows.
type initialize func(statedb.WriteTxn)

func newTable(db *statedb.DB) (statedb.RWTable[*object], initialize, error) {
	table, err := statedb.NewTable(db, "desired-ciliumendpoints", nameIndex)
	if err != nil {
		return nil, nil, err
	}
	txn := db.WriteTxn(table)
	defer txn.Commit()
	return table, table.RegisterInitializer(txn, "endpoints"), nil
}
