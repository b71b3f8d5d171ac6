package crds

// Version of the schemas here. It rises whenever one of them changes, so that an agent can tell an older one from its own.
const Version = "1.2.0"

// VersionLabel is the label that holds the version in the cluster; Cilium's definitions carry theirs in the same one.
const VersionLabel = "io.cilium.k8s.crd.schema.version"

// Definition is a CustomResourceDefinition of apiextensions.k8s.io/v1.
type Definition struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Spec       Spec     `json:"spec"`
}

// Metadata of a [Definition].
type Metadata struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
}

// Spec of a [Definition].
type Spec struct {
	Group    string           `json:"group"`
	Names    Names            `json:"names"`
	Scope    string           `json:"scope"` // "Cluster" or "Namespaced"
	Versions []ServingVersion `json:"versions"`
}

// Names of a resource.
type Names struct {
	Kind       string   `json:"kind"`
	ListKind   string   `json:"listKind"`
	Plural     string   `json:"plural"`
	Singular   string   `json:"singular"`
	ShortNames []string `json:"shortNames"`
	Categories []string `json:"categories"`
}

// ServingVersion is one version of a resource.
type ServingVersion struct {
	Name         string                     `json:"name"`
	Served       bool                       `json:"served"`
	Storage      bool                       `json:"storage"`
	Deprecated   bool                       `json:"deprecated,omitempty"`
	Columns      []Column                   `json:"additionalPrinterColumns,omitempty"`
	Schema       map[string]Schema          `json:"schema"`
	Subresources map[string]map[string]bool `json:"subresources,omitempty"`
}

// Column is what kubectl get shows of an object.
type Column struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Type        string `json:"type"`
	JSONPath    string `json:"jsonPath"`
	Priority    int    `json:"priority,omitempty"` // 1: only with -o wide
}

// NamesInCluster are the names of all definitions, sorted.
func NamesInCluster() []string {
	return []string{
		ciliumCIDRGroups + "." + group, ciliumClusterwideNetworkPolicies + "." + group, ciliumEndpoints + "." + group,
		ciliumEndpointSlices + "." + group, ciliumIdentities + "." + group, ciliumNetworkPolicies + "." + group, ciliumNodes + "." + group,
	}
}

// All are the definitions, sorted by name.
func All() []Definition {
	return []Definition{cidrGroup(), clusterwidePolicy(), endpoint(), endpointSlice(), identity(), policy(), node()}
}

// Group of all resources and version of all but slices, as in package ciliumv2, which would bring all of apimachinery along.
const (
	group   = "cilium.io"
	version = "v2"
)

// Plurals.
const (
	ciliumNodes                      = "ciliumnodes"
	ciliumEndpoints                  = "ciliumendpoints"
	ciliumEndpointSlices             = "ciliumendpointslices"
	ciliumIdentities                 = "ciliumidentities"
	ciliumNetworkPolicies            = "ciliumnetworkpolicies"
	ciliumClusterwideNetworkPolicies = "ciliumclusterwidenetworkpolicies"
	ciliumCIDRGroups                 = "ciliumcidrgroups"
)

// status is the subresource: writes of the object leave the status alone and the other way round.
var status = map[string]map[string]bool{"status": {}}

// age is the column that every resource has.
var age = Column{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"}

func define(names Names, scope string, subresources map[string]map[string]bool, columns []Column, root Schema) Definition {
	names.ListKind, names.Categories = names.Kind+"List", append([]string{"cilium"}, names.Categories...)
	properties := map[string]Schema{
		"apiVersion": words("Version of the API, cilium.io/v2."),
		"kind":       words("Kind of the object, " + names.Kind + "."),
	}
	if _, described := root.Properties["metadata"]; !described {
		properties["metadata"] = Schema{Type: "object"}
	}
	return Definition{
		APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition",
		Metadata: Metadata{Name: names.Plural + "." + group,
			Labels: map[string]string{VersionLabel: Version, "app.kubernetes.io/managed-by": "waggle"}},
		Spec: Spec{Group: group, Names: names, Scope: scope, Versions: []ServingVersion{{
			Name: version, Served: true, Storage: true, Columns: columns, Subresources: subresources,
			Schema: map[string]Schema{"openAPIV3Schema": root.with(properties).require("metadata")},
		}}},
	}
}
