package kubetest

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// patched returns old with a patch applied.
func patched(c call, kind types.PatchType, old *unstructured.Unstructured, data []byte) (*unstructured.Unstructured, error) {
	object := old.DeepCopy().Object
	switch {
	case kind == types.JSONPatchType:
		var operations []operation
		if err := utiljson.Unmarshal(data, &operations); err != nil {
			return nil, apierrors.NewBadRequest("not a JSON patch: " + err.Error())
		}
		for _, o := range operations {
			changed, err := o.apply(object, split(o.Path))
			if err != nil {
				return nil, invalidPatch(c, fmt.Errorf("%s %s: %w", o.Op, o.Path, err))
			}
			object, _ = changed.(map[string]any)
		}
		return &unstructured.Unstructured{Object: object}, nil
	case kind == types.MergePatchType, kind == types.StrategicMergePatchType && c.resource.Proto:
		var patch map[string]any
		if err := utiljson.Unmarshal(data, &patch); err != nil {
			return nil, apierrors.NewBadRequest("not a merge patch: " + err.Error())
		}
		return &unstructured.Unstructured{Object: merge(object, patch, kind == types.StrategicMergePatchType)}, nil
	}
	return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType,
		Reason: metav1.StatusReasonUnsupportedMediaType, Message: "the body of the request was in an unknown format - accepted media types do not include " + string(kind)}}
}

func invalidPatch(c call, err error) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity,
		Reason: metav1.StatusReasonInvalid, Message: err.Error(), Details: &metav1.StatusDetails{Name: c.Name, Kind: c.resource.Plural}}}
}

// merge applies RFC 7396. A strategic patch differs only in a Node's lists, which it merges by type.
func merge(object, patch map[string]any, strategic bool) map[string]any {
	if object == nil {
		object = map[string]any{}
	}
	for name, value := range patch {
		list, isList := value.([]any)
		switch inner, isMap := value.(map[string]any); {
		case value == nil:
			delete(object, name)
		case isMap:
			child, _ := object[name].(map[string]any)
			object[name] = merge(child, inner, strategic)
		case strategic && isList && (name == "conditions" || name == "addresses"):
			old, _ := object[name].([]any)
			object[name] = mergeByType(old, list)
		default:
			object[name] = value
		}
	}
	return object
}

func mergeByType(old, patch []any) []any {
	kind := func(item any) any {
		m, _ := item.(map[string]any)
		return m["type"]
	}
	for _, item := range patch {
		i := slices.IndexFunc(old, func(o any) bool { return kind(o) == kind(item) })
		change, _ := item.(map[string]any)
		switch {
		case i < 0:
			old = append(old, item)
		case change["$patch"] == "delete":
			old = slices.Delete(old, i, i+1)
		default:
			was, _ := old[i].(map[string]any)
			old[i] = merge(was, change, true)
		}
	}
	return old
}

// operation is a step of a JSON patch, RFC 6902 without copy and move.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

func split(path string) []string {
	parts := strings.Split(path, "/")[1:]
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(strings.ReplaceAll(p, "~1", "/"), "~0", "~")
	}
	return parts
}

var errNoSuchPath = errors.New("the path does not exist")

// apply returns target with the operation applied at path.
func (o operation) apply(target any, path []string) (any, error) {
	if len(path) == 0 {
		return o.replace(target)
	}
	switch target := target.(type) {
	case map[string]any:
		return o.applyToMap(target, path)
	case []any:
		return o.applyToList(target, path)
	}
	return nil, errNoSuchPath
}

func (o operation) replace(target any) (any, error) {
	if o.Op == "test" && !reflect.DeepEqual(target, o.Value) {
		return nil, errors.New("the test failed")
	}
	if o.Op == "test" {
		return target, nil
	}
	return runtime.DeepCopyJSONValue(o.Value), nil
}

func (o operation) applyToMap(target map[string]any, path []string) (any, error) {
	child, ok := target[path[0]]
	last := len(path) == 1
	switch {
	case !ok && (!last || o.Op != "add"):
		return nil, errNoSuchPath
	case last && o.Op == "remove":
		delete(target, path[0])
		return target, nil
	}
	changed, err := o.apply(child, path[1:])
	target[path[0]] = changed
	return target, err
}

func (o operation) applyToList(target []any, path []string) (any, error) {
	last := len(path) == 1
	if last && o.Op == "add" && path[0] == "-" {
		return append(target, runtime.DeepCopyJSONValue(o.Value)), nil
	}
	i, err := strconv.Atoi(path[0])
	if err != nil || i < 0 || i > len(target) || i == len(target) && (!last || o.Op != "add") {
		return nil, errNoSuchPath
	}
	switch {
	case last && o.Op == "add":
		return slices.Insert(target, i, runtime.DeepCopyJSONValue(o.Value)), nil
	case last && o.Op == "remove":
		return slices.Delete(target, i, i+1), nil
	}
	changed, err := o.apply(target[i], path[1:])
	target[i] = changed
	return target, err
}
