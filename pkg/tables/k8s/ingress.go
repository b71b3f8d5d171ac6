package k8s

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
	"github.com/waggle-net/waggle/pkg/printable"
)

// IngressBackend is a port of a service in the namespace of the Ingress.
type IngressBackend struct {
	Service string `json:"service,omitempty"` // empty if there is none or it is not a service
	Port    string `json:"port,omitempty"`    // number or name
}

// IngressPath routes requests to a backend.
type IngressPath struct {
	Path    string         `json:"path,omitempty"`
	Type    string         `json:"type,omitempty"` // "Exact", "Prefix" or "ImplementationSpecific"
	Backend IngressBackend `json:"backend"`
}

// IngressRule holds the paths of one host.
type IngressRule struct {
	Host  string        `json:"host,omitempty"` // empty: all hosts
	Paths []IngressPath `json:"paths,omitempty"`
}

// IngressTLS names the certificate of some hosts. The agent never reads the Secret.
type IngressTLS struct {
	Hosts  []string `json:"hosts,omitempty"`
	Secret string   `json:"secret,omitempty"`
}

// Ingress routes requests from outside to services. It is never changed in place.
type Ingress struct {
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	UID         string            `json:"uid,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Class       string            `json:"class,omitempty"`
	Default     IngressBackend    `json:"default"` // for requests that match no rule
	Rules       []IngressRule     `json:"rules,omitempty"`
	TLS         []IngressTLS      `json:"tls,omitempty"`
}

// Key is "namespace/name".
func (i *Ingress) Key() string { return i.Namespace + "/" + i.Name }

// Equal compares everything. It uses reflection, because rules nest deeply and change rarely.
func (i *Ingress) Equal(o *Ingress) bool { return reflect.DeepEqual(i, o) }

// TableHeader implements statedb.TableWritable.
func (*Ingress) TableHeader() []string { return []string{"Ingress", "Class", "Hosts", "TLS"} }

// TableRow implements statedb.TableWritable.
func (i *Ingress) TableRow() []string {
	hosts := make([]string, len(i.Rules))
	for n, r := range i.Rules {
		hosts[n] = r.Host
	}
	return []string{i.Key(), printable.Text(i.Class), printable.Text(strings.Join(hosts, ",")), strconv.Itoa(len(i.TLS))}
}

var ingressIndex = indexes.Unique("name", indexes.String, (*Ingress).Key)

// IngressByName finds an Ingress by "namespace/name".
var IngressByName = ingressIndex.Query

// NewIngressTable makes the table "k8s-ingresses".
func NewIngressTable(db *statedb.DB) (statedb.RWTable[*Ingress], error) {
	return statedb.NewTable(db, "k8s-ingresses", ingressIndex)
}
