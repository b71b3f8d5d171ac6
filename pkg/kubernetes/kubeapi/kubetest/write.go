package kubetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

func (s *Server) create(r *http.Request, c call) (any, error) {
	object, err := decode(r, c.resource)
	if err != nil {
		return nil, err
	}
	switch {
	case object.GetResourceVersion() != "":
		return nil, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	case object.GetNamespace() != "" && object.GetNamespace() != c.Namespace:
		return nil, apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	case clusterScoped(c.resource) != (c.Namespace == ""):
		return nil, apierrors.NewMethodNotSupported(groupResource(c.resource), "create")
	}
	if c.Namespace != "" {
		object.SetNamespace(c.Namespace)
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if object.GetName() == "" && object.GetGenerateName() != "" {
		object.SetName(object.GetGenerateName() + strconv.FormatInt(s.store.version, 36))
	}
	if object.GetName() == "" {
		return nil, apierrors.NewInvalid(groupKind(c.resource), "", field.ErrorList{field.Required(field.NewPath("metadata", "name"), "name or generateName is required")})
	}
	if s.store.objects[c.Resource][key(c.Namespace, object.GetName())] != nil {
		return nil, apierrors.NewAlreadyExists(groupResource(c.resource), object.GetName())
	}
	object.SetUID("")
	return shown(c.resource, s.store.put(c.resource, object)), nil
}

// change handles an update or a patch, of an object or of its status.
func (s *Server) change(r *http.Request, c call) (any, error) {
	var update *unstructured.Unstructured
	var patch []byte
	var err error
	if c.Verb == "update" {
		update, err = decode(r, c.resource)
	} else {
		patch, err = io.ReadAll(r.Body)
	}
	if err != nil {
		return nil, err
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	old := s.store.objects[c.Resource][key(c.Namespace, c.Name)]
	if old == nil {
		return nil, apierrors.NewNotFound(groupResource(c.resource), c.Name)
	}
	if update == nil {
		if update, err = patched(c, types.PatchType(r.Header.Get("Content-Type")), old, patch); err != nil {
			return nil, err
		}
	}
	if err := checkUpdate(c, old, update); err != nil {
		return nil, err
	}
	keep(c, old, update)
	if reflect.DeepEqual(old.Object, update.Object) {
		return shown(c.resource, old), nil // like a real server: no new version and no event
	}
	return shown(c.resource, s.store.put(c.resource, update)), nil
}

// checkUpdate compares names and versions.
func checkUpdate(c call, old, update *unstructured.Unstructured) error {
	version, uid := update.GetResourceVersion(), update.GetUID()
	switch {
	case update.GetName() != c.Name:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", update.GetName(), c.Name))
	case uid != "" && uid != old.GetUID():
		return apierrors.NewConflict(groupResource(c.resource), c.Name, fmt.Errorf("precondition failed: UID in precondition: %s, UID in object meta: %s", uid, old.GetUID()))
	case version == "" && c.resource.GroupVersion.Group == "cilium.io":
		return apierrors.NewInvalid(groupKind(c.resource), c.Name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update")})
	case version != "" && version != old.GetResourceVersion():
		return apierrors.NewConflict(groupResource(c.resource), c.Name,
			errors.New("the object has been modified; please apply your changes to the latest version and try again"))
	}
	return nil
}

// keep restores the parts of the object that this request may not change.
func keep(c call, old, update *unstructured.Unstructured) {
	update.SetNamespace(old.GetNamespace())
	update.SetResourceVersion(old.GetResourceVersion())
	update.SetUID(old.GetUID())
	_ = unstructured.SetNestedField(update.Object, old.Object["metadata"].(map[string]any)["creationTimestamp"], "metadata", "creationTimestamp")
	kept := []string{}
	switch {
	case c.Subresource == "status":
		kept = append(kept, "spec")
	case hasStatus(c.resource):
		kept = append(kept, "status")
	}
	for _, name := range kept {
		delete(update.Object, name)
		if value, ok := old.Object[name]; ok {
			update.Object[name] = runtime.DeepCopyJSONValue(value)
		}
	}
}

func (s *Server) delete(r *http.Request, c call) (any, error) {
	options, err := deleteOptions(r)
	if err != nil {
		return nil, err
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	k := key(c.Namespace, c.Name)
	old := s.store.objects[c.Resource][k]
	if old == nil {
		return nil, apierrors.NewNotFound(groupResource(c.resource), c.Name)
	}
	if p := options.Preconditions; p != nil {
		if p.UID != nil && *p.UID != old.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != old.GetResourceVersion() {
			return nil, apierrors.NewConflict(groupResource(c.resource), c.Name, errors.New("the preconditions of the deletion do not hold"))
		}
	}
	s.store.remove(c.Resource, k)
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: c.Name, Group: c.resource.GroupVersion.Group, Kind: c.resource.Plural, UID: old.GetUID()}}, nil
}

// protobufPrefix is the prefix of protobuf bodies; a runtime.Unknown follows.
var protobufPrefix = []byte("k8s\x00")

// body returns the request body, the raw bytes of an object, and whether they are protobuf.
func body(r *http.Request) (data []byte, protobuf bool, err error) {
	data, err = io.ReadAll(r.Body)
	if err != nil || !bytes.HasPrefix(data, protobufPrefix) {
		return data, false, err
	}
	var unknown runtime.Unknown
	if err := unknown.Unmarshal(data[len(protobufPrefix):]); err != nil {
		return nil, true, apierrors.NewBadRequest("not a protobuf object: " + err.Error())
	}
	return unknown.Raw, true, nil
}

type unmarshaler interface{ Unmarshal(data []byte) error }

func decode(r *http.Request, resource kubeapi.Resource) (*unstructured.Unstructured, error) {
	data, protobuf, err := body(r)
	if err != nil {
		return nil, err
	}
	if !protobuf {
		object, err := parse(resource, data)
		if err != nil {
			return nil, apierrors.NewBadRequest("not a JSON object: " + err.Error())
		}
		return object, nil
	}
	typed := resource.New()
	known, ok := typed.(unmarshaler)
	if !ok {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType,
			Reason: metav1.StatusReasonUnsupportedMediaType, Message: "the body of the request was in an unknown format"}}
	}
	if err := known.Unmarshal(data); err != nil {
		return nil, apierrors.NewBadRequest("not a protobuf object: " + err.Error())
	}
	return generic(resource, typed)
}

func deleteOptions(r *http.Request) (*metav1.DeleteOptions, error) {
	options := &metav1.DeleteOptions{}
	data, protobuf, err := body(r)
	switch {
	case err != nil:
		return nil, err
	case len(data) == 0:
		return options, nil
	case protobuf:
		err = options.Unmarshal(data)
	default:
		err = json.Unmarshal(data, options)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest("not DeleteOptions: " + err.Error())
	}
	return options, nil
}

func groupKind(r kubeapi.Resource) schema.GroupKind {
	return schema.GroupKind{Group: r.GroupVersion.Group, Kind: kindOf(r)}
}
