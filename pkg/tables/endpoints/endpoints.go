// Package endpoints holds the intent: the requested attachments of pods to the network. The table endpoint-states holds their state.
package endpoints

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/waggle-net/waggle/pkg/column"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Endpoint is one attachment of a container to the network.
type Endpoint struct {
	ID uint16 `json:"id"` // local id, 1 to 4095; index into the map endpoint_facts

	ContainerID string `json:"containerID"` // the runtime's name of the sandbox
	IfName      string `json:"ifName"`      // name inside the pod, usually eth0
	NetnsPath   string `json:"netnsPath"`   // as given at ADD; empty when unknown
	NetnsCookie uint64 `json:"netnsCookie"` // SO_NETNS_COOKIE of the pod's namespace; 0 when unknown
	NetnsInode  uint64 `json:"netnsInode"`  // inode of NetnsPath at ADD; 0 when unknown

	HostIfName  string   `json:"hostIfName"`  // host end, "lxc" + 12 hex digits
	HostIfIndex int      `json:"hostIfIndex"` // of the host end, in the agent's namespace
	HostMAC     mac.Addr `json:"hostMAC"`     // of the host end
	PodMAC      mac.Addr `json:"podMAC"`      // of the pod's end

	IPv4     netip.Addr `json:"ipv4"` // invalid if the pod has none
	IPv6     netip.Addr `json:"ipv6"` // invalid if the pod has none
	IPv4Pool string     `json:"ipv4Pool,omitempty"`
	IPv6Pool string     `json:"ipv6Pool,omitempty"`

	// GatewayIPv4 and GatewayIPv6 are the router addresses that the pod was given, one for each address. They stay when the node's addresses change. If
	// invalid, they are unknown and the node's addresses apply.
	GatewayIPv4 netip.Addr `json:"gatewayIPv4,omitzero"`
	GatewayIPv6 netip.Addr `json:"gatewayIPv6,omitzero"`

	K8sNamespace string            `json:"k8sNamespace,omitempty"`
	K8sPodName   string            `json:"k8sPodName,omitempty"`
	K8sUID       string            `json:"k8sUID,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"` // "source:key" -> value; never changed in place
	// LabelsMissing says which labels are not known and why; empty if Labels is complete.
	LabelsMissing string `json:"labelsMissing,omitempty"`
	// Ports are the named ports of the pod's containers, known when its labels are; they stay when the pod's object is deleted. Never changed in place.
	Ports []k8s.ContainerPort `json:"ports,omitempty"`

	CreatedAt time.Time `json:"createdAt"` // by the wall clock, which may jump: see [CompareAge]
	// Serial counts the endpoints of this node: the younger of two has the larger number. 0 in files of the first version.
	Serial uint64 `json:"serial,omitempty"`
	// NetnsDir is "device:inode" of the directory of NetnsPath as the agent saw it at ADD, if it saw the namespace there; otherwise empty. A missing
	// file proves that a namespace is gone only in the same directory.
	NetnsDir string `json:"netnsDir,omitempty"`
	Boot     string `json:"boot,omitempty"` // boot id of the kernel at ADD; empty when unknown
	// Restored reports whether the row came from a state file of a previous run.
	Restored bool `json:"restored,omitempty"`
	// Quarantine says why the endpoint could not be restored; its addresses stay allocated. Empty otherwise.
	Quarantine string `json:"quarantine,omitempty"`
	// Doubt names the evidence against an endpoint that still works: its pod is unknown, or its namespace is not at its path. Empty otherwise.
	Doubt string `json:"doubt,omitempty"`
}

// AttachmentID is the CNI's name of the endpoint: "<container id>:<interface>".
func (e *Endpoint) AttachmentID() string { return e.ContainerID + ":" + e.IfName }

// PodName is "namespace/pod", or empty for a container that is not a pod.
func (e *Endpoint) PodName() string {
	if e.K8sPodName == "" {
		return ""
	}
	return e.K8sNamespace + "/" + e.K8sPodName
}

// CompareAge orders endpoints from the oldest to the youngest: by Serial, then CreatedAt, then ID.
func CompareAge(a, b *Endpoint) int {
	return cmp.Or(cmp.Compare(a.Serial, b.Serial), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
}

// Clone returns a copy that may be changed and inserted.
func (e *Endpoint) Clone() *Endpoint { c := *e; return &c }

// Equal compares everything.
func (e *Endpoint) Equal(o *Endpoint) bool {
	return maps.Equal(e.Labels, o.Labels) && slices.Equal(e.Ports, o.Ports) && e.CreatedAt.Equal(o.CreatedAt) && withoutMap(e) == withoutMap(o)
}

// comparableEndpoint is an Endpoint without map, list and time, so that it can be compared with ==.
type comparableEndpoint struct {
	ID                                                        uint16
	ContainerID, IfName, NetnsPath, NetnsDir, Boot            string
	NetnsCookie, NetnsInode, Serial                           uint64
	HostIfName                                                string
	HostIfIndex                                               int
	HostMAC, PodMAC                                           mac.Addr
	IPv4, IPv6, GatewayIPv4, GatewayIPv6                      netip.Addr
	IPv4Pool, IPv6Pool, K8sNamespace, K8sPodName, K8sUID, Why string
	Missing, Doubt                                            string
	Restored                                                  bool
}

func withoutMap(e *Endpoint) comparableEndpoint {
	return comparableEndpoint{e.ID, e.ContainerID, e.IfName, e.NetnsPath, e.NetnsDir, e.Boot, e.NetnsCookie, e.NetnsInode,
		e.Serial, e.HostIfName, e.HostIfIndex, e.HostMAC, e.PodMAC, e.IPv4, e.IPv6, e.GatewayIPv4, e.GatewayIPv6, e.IPv4Pool,
		e.IPv6Pool, e.K8sNamespace, e.K8sPodName, e.K8sUID, e.Quarantine, e.LabelsMissing, e.Doubt, e.Restored}
}

// TableHeader implements statedb.TableWritable.
func (*Endpoint) TableHeader() []string {
	return []string{"ID", "Pod", "Attachment", "IPv4", "IPv6", "HostInterface", "Quarantine"}
}

// TableRow implements statedb.TableWritable.
func (e *Endpoint) TableRow() []string {
	return []string{strconv.Itoa(int(e.ID)), cmp.Or(e.PodName(), "-"), e.AttachmentID(), column.Addr(e.IPv4), column.Addr(e.IPv6),
		e.HostIfName, cmp.Or(e.Quarantine, "-")}
}
