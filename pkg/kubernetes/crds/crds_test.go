package crds

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// TestAll_EqualsClientResources: there is a definition for each of the client's resources of group cilium.io, and no other.
func TestAll_EqualsClientResources(t *testing.T) {
	t.Parallel()
	if group != ciliumv2.GroupVersion.Group || version != ciliumv2.GroupVersion.Version || sliceVersion != ciliumv2.SliceGroupVersion.Version {
		t.Errorf("%s/%s is not %s", group, version, ciliumv2.GroupVersion)
	}
	var want, have []string
	for _, r := range kubeapi.Resources() {
		if r.GroupVersion.Group == ciliumv2.GroupVersion.Group {
			want = append(want, r.String())
		}
	}
	slices.Sort(want)
	for _, d := range All() {
		have = append(have, d.Metadata.Name)
		if d.Metadata.Labels[VersionLabel] != Version || d.Metadata.Name != d.Spec.Names.Plural+"."+d.Spec.Group {
			t.Errorf("%s: %+v", d.Metadata.Name, d.Metadata)
		}
	}
	if !slices.Equal(want, have) || !slices.Equal(want, NamesInCluster()) {
		t.Errorf("the client knows %q, defined are %q, named are %q", want, have, NamesInCluster())
	}
}

// schemaOf returns the schema of a kind.
func schemaOf(t *testing.T, kind string) Schema {
	t.Helper()
	for _, d := range All() {
		if d.Spec.Names.Kind == kind {
			return d.Spec.Versions[0].Schema["openAPIV3Schema"]
		}
	}
	t.Fatalf("no definition of %s", kind)
	return Schema{}
}

// TestSchemas_HaveEveryFieldOfTheTypes: the API server silently drops a field that is not in the schema.
func TestSchemas_HaveEveryFieldOfTheTypes(t *testing.T) {
	t.Parallel()
	for _, object := range []any{ciliumv2.CiliumNode{}, ciliumv2.CiliumEndpoint{}, ciliumv2.CiliumIdentity{},
		ciliumv2.CiliumNetworkPolicy{}, ciliumv2.CiliumClusterwideNetworkPolicy{}, ciliumv2.CiliumCIDRGroup{}, ciliumv2.CiliumEndpointSlice{}} {
		kind := reflect.TypeOf(object)
		if fields := compare(t, kind.Name(), kind, schemaOf(t, kind.Name())); fields < 4 {
			t.Errorf("%s: only %d fields were compared", kind.Name(), fields)
		}
	}
}

// compare checks a type against its schema and returns the number of fields.
func compare(t *testing.T, path string, kind reflect.Type, s Schema) (fields int) {
	t.Helper()
	wants := map[reflect.Kind]string{reflect.String: "string", reflect.Int: "integer", reflect.Int64: "integer", reflect.Uint16: "integer",
		reflect.Bool: "boolean", reflect.Slice: "array", reflect.Map: "object", reflect.Struct: "object"}
	if kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	if kind == reflect.TypeFor[json.RawMessage]() || kind == reflect.TypeFor[metav1.ObjectMeta]() {
		return 1
	}
	if s.Type != wants[kind.Kind()] {
		t.Errorf("%s: the type is %s, the schema says %q", path, kind, s.Type)
		return 0
	}
	switch kind.Kind() {
	case reflect.Slice:
		return compare(t, path+"[]", kind.Elem(), *s.Items)
	case reflect.Map:
		return compare(t, path+"{}", kind.Elem(), *s.AdditionalProperties)
	case reflect.Struct:
		for i := range kind.NumField() {
			field := kind.Field(i)
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			if options == "inline" {
				fields += compare(t, path, field.Type, s)
				continue
			}
			below, known := s.Properties[name]
			if !known {
				t.Errorf("%s.%s is not in the schema", path, name)
				continue
			}
			fields += compare(t, path+"."+name, field.Type, below)
		}
		return fields
	}
	return 1
}

// TestSchemas_AreStructural checks the API server's requirements for structural schemas.
func TestSchemas_AreStructural(t *testing.T) {
	t.Parallel()
	for _, d := range All() {
		root := d.Spec.Versions[0].Schema["openAPIV3Schema"]
		structural(t, d.Spec.Names.Kind, root)
		if d.Spec.Versions[0].Subresources != nil && len(root.AnyOf)+len(root.OneOf) > 0 {
			t.Errorf("%s: no alternatives are allowed at the root beside a status subresource", d.Spec.Names.Kind)
		}
	}
}

func structural(t *testing.T, path string, s Schema) {
	t.Helper()
	switch {
	case s.Type == "" && !s.IntOrString:
		t.Errorf("%s has no type", path)
	case s.Type == "array" && s.Items == nil:
		t.Errorf("%s has no items", path)
	case s.Type == "object" && s.Properties == nil && s.AdditionalProperties == nil && !s.PreserveUnknown && !strings.HasSuffix(path, ".metadata"):
		t.Errorf("%s is an object of nothing", path)
	case s.Properties != nil && s.AdditionalProperties != nil:
		t.Errorf("%s has both properties and additional ones", path)
	}
	for _, required := range s.Required {
		if _, ok := s.Properties[required]; !ok {
			t.Errorf("%s wants %s, which it does not have", path, required)
		}
	}
	for _, either := range slices.Concat(s.AnyOf, s.OneOf) {
		if either.Description != "" || either.Type != "" && !s.IntOrString {
			t.Errorf("%s: an alternative says more than it may", path)
		}
		for name, below := range either.Properties {
			if _, ok := s.Properties[name]; !ok || below.Type != "" || below.Description != "" || below.Properties != nil || below.Items != nil {
				t.Errorf("%s: an alternative says of %s more than it may", path, name)
			}
		}
		for _, required := range either.Required {
			if _, ok := s.Properties[required]; !ok {
				t.Errorf("%s: an alternative wants %s, which is not there", path, required)
			}
		}
	}
	for name, below := range s.Properties {
		if below.Description == "" && name != "metadata" {
			t.Errorf("%s.%s has no description", path, name)
		}
		structural(t, path+"."+name, below)
	}
	if s.Items != nil {
		structural(t, path+"[]", *s.Items)
	}
	if s.AdditionalProperties != nil {
		structural(t, path+"{}", *s.AdditionalProperties)
	}
}

// TestSchemas_KeepUnknownFieldsOfRules: without an unknown field that the API server drops silently, a rule could match more.
func TestSchemas_KeepUnknownFieldsOfRules(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy"} {
		root := schemaOf(t, kind)
		objects := keepUnknown(t, kind+".spec", root.Properties["spec"]) + keepUnknown(t, kind+".specs", root.Properties["specs"])
		if objects < 100 {
			t.Errorf("%s: only %d objects were seen", kind, objects)
		}
	}
}

func keepUnknown(t *testing.T, path string, s Schema) (objects int) {
	t.Helper()
	if s.Items != nil {
		objects += keepUnknown(t, path+"[]", *s.Items)
	}
	if s.Type == "object" && s.AdditionalProperties == nil {
		if objects++; !s.PreserveUnknown {
			t.Errorf("%s drops unknown fields", path)
		}
	}
	for name, below := range s.Properties {
		objects += keepUnknown(t, path+"."+name, below)
	}
	return objects
}
