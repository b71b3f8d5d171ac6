package crds

// Version is the version of the schemas. It must increase with each change of a schema, so that an agent detects older definitions in the cluster.
const Version = "1.3.0"

// VersionLabel is the label of a definition with its version. Cilium's definitions use the same label.
const VersionLabel = "io.cilium.k8s.crd.schema.version"

// Definition is a CustomResourceDefinition of apiextensions.k8s.io/v1.
type Definition struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   Metadata `json:"metadata"`
	Spec       Spec     `json:"spec"`
}

// Metadata is the metadata of a [Definition].
type Metadata struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
}

// Spec is the spec of a [Definition].
type Spec struct {
	Group    string           `json:"group"`
	Names    Names            `json:"names"`
	Scope    string           `json:"scope"` // "Cluster" or "Namespaced"
	Versions []ServingVersion `json:"versions"`
}

// Names holds the names of a resource.
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

// Column is a column in the output of kubectl get.
type Column struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Type        string `json:"type"`
	JSONPath    string `json:"jsonPath"`
	Priority    int    `json:"priority,omitempty"` // 1: only with -o wide
}

// NamesInCluster returns the names of all definitions, sorted.
func NamesInCluster() []string {
	return []string{
		ciliumCIDRGroups + "." + group, ciliumClusterwideNetworkPolicies + "." + group, ciliumEndpoints + "." + group,
		ciliumEndpointSlices + "." + group, ciliumIdentities + "." + group, ciliumNetworkPolicies + "." + group, ciliumNodes + "." + group,
	}
}

// All returns all definitions, sorted by name.
func All() []Definition {
	return []Definition{cidrGroup(), clusterwidePolicy(), endpoint(), endpointSlice(), identity(), policy(), node()}
}

// Group of all resources and version of all but slices, as in package ciliumv2. An import of that package would link all of apimachinery.
const (
	group   = "cilium.io"
	version = "v2"
)

// Plural names.
const (
	ciliumNodes                      = "ciliumnodes"
	ciliumEndpoints                  = "ciliumendpoints"
	ciliumEndpointSlices             = "ciliumendpointslices"
	ciliumIdentities                 = "ciliumidentities"
	ciliumNetworkPolicies            = "ciliumnetworkpolicies"
	ciliumClusterwideNetworkPolicies = "ciliumclusterwidenetworkpolicies"
	ciliumCIDRGroups                 = "ciliumcidrgroups"
)

// status is the status subresource: a write of the object does not change the status, and a write of the status nothing else.
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
