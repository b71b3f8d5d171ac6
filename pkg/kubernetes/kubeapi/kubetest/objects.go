package kubetest

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

var quiet = log.New(io.Discard, "", 0) // tests break connections intentionally

// resourceOf returns the resource of an object. For metadata-only objects, the kind in the object decides.
func resourceOf(object runtime.Object) (kubeapi.Resource, error) {
	gvk := object.GetObjectKind().GroupVersionKind()
	for _, r := range kubeapi.Resources() {
		if _, ok := object.(*unstructured.Unstructured); ok {
			if r.GroupVersion == gvk.GroupVersion() && kindOf(r) == gvk.Kind {
				return r, nil
			}
			continue
		}
		if reflect.TypeOf(object) == reflect.TypeOf(r.New()) {
			return r, nil
		}
	}
	return kubeapi.Resource{}, fmt.Errorf("kubetest: no resource for a %T of kind %q", object, gvk)
}

// ingresses is a resource that only agents of previous revisions list, before they are ready. Tests of upgrades and downgrades run them.
var ingresses = kubeapi.Resource{GroupVersion: networkingv1.SchemeGroupVersion, Plural: "ingresses", Proto: true,
	New:     func() runtime.Object { return new(networkingv1.Ingress) },
	NewList: func() runtime.Object { return new(networkingv1.IngressList) }}

// resourceAt returns the resource of a path.
func resourceAt(group, version, plural string) (kubeapi.Resource, bool) {
	for _, r := range append(kubeapi.Resources(), ingresses) {
		if r.GroupVersion == (schema.GroupVersion{Group: group, Version: version}) && r.Plural == plural {
			return r, true
		}
	}
	return kubeapi.Resource{}, false
}

func kindOf(r kubeapi.Resource) string {
	if r.Plural == kubeapi.CustomResourceDefinitions.Plural {
		return "CustomResourceDefinition"
	}
	return reflect.TypeOf(r.New()).Elem().Name()
}

// clusterScoped reports whether objects of r have no namespace.
func clusterScoped(r kubeapi.Resource) bool {
	switch r.Plural {
	case "nodes", "namespaces", "ciliumnodes", "ciliumidentities", "ciliumclusterwidenetworkpolicies", "ciliumcidrgroups", "ciliumendpointslices", "customresourcedefinitions":
		return true
	}
	return false
}

// hasStatus reports whether r has a status subresource, so that writes to the object itself do not change its status.
func hasStatus(r kubeapi.Resource) bool {
	switch r.Plural {
	case "nodes", "pods", "namespaces", "services", "ciliumnetworkpolicies", "ciliumclusterwidenetworkpolicies":
		return true
	}
	return false
}

// generic converts object to the form in the store.
func generic(r kubeapi.Resource, object runtime.Object) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	return parse(r, data)
}

func parse(r kubeapi.Resource, data []byte) (*unstructured.Unstructured, error) {
	out := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(data, &out.Object); err != nil { // keeps integers as integers
		return nil, err
	}
	if out.Object == nil {
		out.Object = map[string]any{}
	}
	out.SetGroupVersionKind(r.GroupVersion.WithKind(kindOf(r)))
	if _, found, _ := unstructured.NestedFieldNoCopy(out.Object, "metadata", "creationTimestamp"); found &&
		out.GetCreationTimestamp().Time.IsZero() {
		unstructured.RemoveNestedField(out.Object, "metadata", "creationTimestamp")
	}
	return out, nil
}

func into(object *unstructured.Unstructured, out runtime.Object) error {
	data, err := json.Marshal(object.Object)
	if err != nil {
		return err
	}
	value := reflect.ValueOf(out).Elem()
	value.SetZero()
	return json.Unmarshal(data, out)
}

// Put creates or replaces objects including their status, without the checks of client requests.
func (s *Server) Put(objects ...runtime.Object) {
	for _, object := range objects {
		r, err := resourceOf(object)
		if err != nil {
			panic(err)
		}
		stored, err := generic(r, object)
		if err != nil {
			panic(fmt.Errorf("kubetest: encode %T: %w", object, err))
		}
		if clusterScoped(r) != (stored.GetNamespace() == "") || stored.GetName() == "" {
			panic(fmt.Errorf("kubetest: %s %q in namespace %q: a name is needed, and a namespace exactly where the resource has one",
				r, stored.GetName(), stored.GetNamespace()))
		}
		s.store.mu.Lock()
		s.store.put(r, stored)
		s.store.mu.Unlock()
	}
}

// PutYAML is [Server.Put] for the objects of a manifest. Lines of "---" separate documents; a document need not be an object.
func (s *Server) PutYAML(manifest string) error {
	for document := range strings.SplitSeq(manifest, "---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			return err
		}
		if len(object.Object) > 0 {
			s.Put(object)
		}
	}
	return nil
}

// Get reads an object into out, unless that is nil, and reports whether it exists.
func (s *Server) Get(r kubeapi.Resource, namespace, name string, out runtime.Object) bool {
	s.store.mu.Lock()
	object := s.store.objects[r.String()][key(namespace, name)]
	s.store.mu.Unlock()
	if object == nil || out == nil {
		return object != nil
	}
	if err := into(object, out); err != nil {
		panic(fmt.Errorf("kubetest: decode %s %s: %w", r, name, err))
	}
	return true
}

// List returns all objects of a resource, sorted by namespace and name.
func (s *Server) List(r kubeapi.Resource) []runtime.Object {
	s.store.mu.Lock()
	objects := s.store.sorted(r.String())
	s.store.mu.Unlock()
	out := make([]runtime.Object, 0, len(objects))
	for _, object := range objects {
		typed := r.New()
		if err := into(object, typed); err != nil {
			panic(fmt.Errorf("kubetest: decode %s %s: %w", r, object.GetName(), err))
		}
		out = append(out, typed)
	}
	return out
}

// Remove deletes an object and reports whether it existed.
func (s *Server) Remove(r kubeapi.Resource, namespace, name string) bool {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	return s.store.remove(r.String(), key(namespace, name))
}

// awaitTimeout is the timeout of Await.
const awaitTimeout = 2 * time.Minute

// Await fails the test unless condition becomes true. It evaluates condition again after every change of an object and every request.
func (s *Server) Await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	timeout := time.After(awaitTimeout)
	for {
		s.store.mu.Lock()
		changed := s.store.changed
		s.store.mu.Unlock()
		if condition() {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("waited %s in vain: %s", awaitTimeout, what)
		}
	}
}

// respondJSON writes an answer.
func respondJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // ignored: the client has closed the connection
}
