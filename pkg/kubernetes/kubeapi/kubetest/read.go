package kubetest

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

func (s *Server) get(c call) (any, error) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	object := s.store.objects[c.Resource][key(c.Namespace, c.Name)]
	if object == nil {
		return nil, apierrors.NewNotFound(groupResource(c.resource), c.Name)
	}
	return shown(c.resource, object), nil
}

// shown returns an object as in a response: only the metadata if requested, and for CustomResourceDefinitions always.
func shown(r kubeapi.Resource, object *unstructured.Unstructured) map[string]any {
	if !r.HasOnlyMetadata() {
		return object.Object
	}
	return map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object.Object["metadata"]}
}

func (s *Server) list(r *http.Request, c call) (any, error) {
	query := r.URL.Query()
	selected, err := newSelector(c, query)
	if err != nil {
		return nil, err
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	asked, err := s.store.listVersion(query)
	if err != nil {
		return nil, err
	}
	at, after, err := s.store.resume(query.Get("continue"))
	if err != nil {
		return nil, err
	}
	limit, _ := strconv.Atoi(query.Get("limit"))
	if asked == "0" {
		limit = 0 // the watch cache has no pages
	}

	items, next := []any{}, ""
	keys := s.store.sortedKeys(c.Resource)
	if asked != "" && s.store.takeEmpty(c.Resource) {
		keys = nil
	}
	first, _ := slices.BinarySearch(keys, after+"\x00") // the successor of after
	for _, k := range keys[first:] {
		object := s.store.objects[c.Resource][k]
		if !selected.match(object) {
			continue
		}
		if limit > 0 && len(items) == limit {
			next = token(at, after)
			break
		}
		items, after = append(items, shown(c.resource, object)), k
	}
	metadata := map[string]any{"resourceVersion": strconv.FormatInt(at, 10)}
	if next != "" {
		metadata["continue"] = next
	}
	return listOf(c.resource, metadata, items), nil
}

func listOf(r kubeapi.Resource, metadata map[string]any, items []any) map[string]any {
	kind, version := kindOf(r)+"List", r.GroupVersion.String()
	if r.HasOnlyMetadata() {
		kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
	}
	return map[string]any{"kind": kind, "apiVersion": version, "metadata": metadata, "items": items}
}

// takeEmpty reports whether this list must be empty. The caller must hold the lock.
func (s *store) takeEmpty(resource string) bool {
	if s.empty[resource] == 0 {
		return false
	}
	s.empty[resource]--
	return true
}

// listVersion returns the requested resourceVersion; empty for a quorum read. The caller must hold the lock.
func (s *store) listVersion(query url.Values) (string, error) {
	asked := query.Get("resourceVersion")
	if asked == "" {
		return "", nil
	}
	version, err := strconv.ParseInt(asked, 10, 64)
	switch {
	case err != nil:
		return "", apierrors.NewBadRequest(fmt.Sprintf("invalid resourceVersion %q", asked))
	case version > s.version:
		return "", tooLarge(version, s.version)
	case query.Get("resourceVersionMatch") == "Exact" && version < s.compacted:
		return "", gone(version, s.compacted)
	}
	return asked, nil
}

// tooLarge returns the error for a version that the server has not reached. Clients recognize its cause and repeat the request as a quorum read.
func tooLarge(version, newest int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", version, newest), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// token encodes the end of a page and the version of the list.
func token(at int64, after string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(at, 10) + " " + after))
}

// resume decodes a token. The caller must hold the lock.
func (s *store) resume(token string) (at int64, after string, err error) {
	if token == "" {
		return s.version, "", nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	version, after, found := strings.Cut(string(raw), " ")
	at, errNumber := strconv.ParseInt(version, 10, 64)
	switch {
	case err != nil || errNumber != nil || !found:
		return 0, "", apierrors.NewBadRequest("continue key is not valid")
	case at < s.compacted:
		return 0, "", apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result.")
	}
	return at, after, nil
}

func gone(version, oldest int64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", version, oldest))
}

// selector is the selection of a list or a watch.
type selector struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

func newSelector(c call, query url.Values) (selector, error) {
	byLabel, err := labels.Parse(query.Get("labelSelector"))
	if err != nil {
		return selector{}, apierrors.NewBadRequest(err.Error())
	}
	byField, err := fields.ParseSelector(query.Get("fieldSelector"))
	if err != nil {
		return selector{}, apierrors.NewBadRequest(err.Error())
	}
	for _, requirement := range byField.Requirements() {
		if !selectable(c.resource, requirement.Field) {
			return selector{}, apierrors.NewBadRequest("field label not supported: " + requirement.Field)
		}
	}
	return selector{c.Namespace, byLabel, byField}, nil
}

// selectable reports whether an API server supports a field in field selectors.
func selectable(r kubeapi.Resource, field string) bool {
	switch field {
	case "metadata.name":
		return true
	case "metadata.namespace":
		return !clusterScoped(r)
	case "spec.nodeName", "spec.hostNetwork", "spec.restartPolicy", "spec.serviceAccountName", "status.phase", "status.podIP", "status.nominatedNodeName":
		return r.Plural == "pods"
	case "spec.unschedulable":
		return r.Plural == "nodes"
	}
	return false
}

func (s selector) match(object *unstructured.Unstructured) bool {
	if object == nil || s.namespace != "" && s.namespace != object.GetNamespace() || !s.labels.Matches(labels.Set(object.GetLabels())) {
		return false
	}
	for _, r := range s.fields.Requirements() {
		value, _, _ := unstructured.NestedFieldNoCopy(object.Object, strings.Split(r.Field, ".")...)
		text := ""
		if value != nil {
			text = fmt.Sprint(value)
		}
		if (text == r.Value) == (r.Operator == "!=") {
			return false
		}
	}
	return true
}
