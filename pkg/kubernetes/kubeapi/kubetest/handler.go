package kubetest

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// call is a request with its parsed path.
type call struct {
	Request
	resource kubeapi.Resource
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := read(r)
	s.mu.Lock()
	s.requests = append(s.requests, c.Request)
	fault, token, denied := s.fault, s.token, s.denied[denial{c.Verb, c.Resource}]
	s.mu.Unlock()
	s.store.mu.Lock()
	s.store.wake() // an Await may wait for this request
	s.store.mu.Unlock()

	if fault != nil {
		if status, body := fault(r); status != 0 {
			respondFault(w, c, status, body)
			return
		}
	}
	switch {
	case token != "" && r.Header.Get("Authorization") != "Bearer "+token:
		respondError(w, apierrors.NewUnauthorized("Unauthorized"))
	case err != nil:
		respondError(w, err)
	case c.Resource == "":
		serveOther(w, r)
	case denied:
		respondError(w, forbidden(c))
	default:
		s.serve(w, r, c)
	}
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, c call) {
	var answer any
	var err error
	status := http.StatusOK
	switch c.Verb {
	case "watch":
		s.watch(w, r, c)
		return
	case "get":
		answer, err = s.get(c)
	case "list":
		answer, err = s.list(r, c)
	case "create":
		answer, err = s.create(r, c)
		status = http.StatusCreated
	case "update", "patch":
		answer, err = s.change(r, c)
	case "delete":
		answer, err = s.delete(r, c)
	}
	if err != nil {
		respondError(w, err)
		return
	}
	respondJSON(w, status, answer)
}

// read parses a request. A path that names no resource gives a call without one.
func read(r *http.Request) (call, error) {
	c := call{Request: Request{Path: r.URL.Path, Query: r.URL.RawQuery, UserAgent: r.UserAgent(), ContentType: r.Header.Get("Content-Type")}}
	c.Verb = strings.ToLower(r.Method)
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var group, version string
	switch {
	case parts[0] == "api" && len(parts) > 2:
		version, parts = parts[1], parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		group, version, parts = parts[1], parts[2], parts[3:]
	default:
		return c, nil
	}
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" {
		c.Namespace, parts = parts[1], parts[2:]
	}
	resource, ok := resourceAt(group, version, parts[0])
	if !ok {
		return c, apierrors.NewGenericServerResponse(http.StatusNotFound, c.Verb, schema.GroupResource{Group: group, Resource: parts[0]}, "",
			"404 page not found", 0, true)
	}
	c.resource, c.Resource = resource, resource.String()
	if r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata") {
		c.resource = resource.MetadataOnly()
	}
	if len(parts) > 1 {
		c.Name = parts[1]
	}
	if len(parts) > 2 {
		c.Subresource = parts[2]
	}
	var err error
	if c.Verb, err = verb(r, c); err != nil {
		return c, err
	}
	if c.Namespace != "" && clusterScoped(resource) || c.Namespace == "" && c.Name != "" && !clusterScoped(resource) ||
		c.Subresource != "" && (c.Subresource != "status" || !hasStatus(resource)) {
		return c, apierrors.NewGenericServerResponse(http.StatusNotFound, c.Verb, groupResource(resource), c.Name, "404 page not found", 0, true)
	}
	return c, nil
}

func verb(r *http.Request, c call) (string, error) {
	watching := r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1"
	switch {
	case r.Method == http.MethodGet && c.Name != "":
		return "get", nil
	case r.Method == http.MethodGet && watching:
		return "watch", nil
	case r.Method == http.MethodGet:
		return "list", nil
	case r.Method == http.MethodPost && c.Name == "":
		return "create", nil
	case r.Method == http.MethodPut && c.Name != "":
		return "update", nil
	case r.Method == http.MethodPatch && c.Name != "":
		return "patch", nil
	case r.Method == http.MethodDelete && c.Name != "":
		return "delete", nil
	}
	return strings.ToLower(r.Method), apierrors.NewMethodNotSupported(groupResource(c.resource), strings.ToLower(r.Method))
}

// serveOther answers requests for paths other than resources.
func serveOther(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/version":
		respondJSON(w, http.StatusOK, map[string]string{"major": "1", "minor": "36", "gitVersion": "v1.36.3"})
	case "/readyz", "/livez", "/healthz":
		_, _ = fmt.Fprint(w, "ok")
	default:
		respondError(w, apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{}, "", "404 page not found", 0, true))
	}
}

func respondFault(w http.ResponseWriter, c call, status int, body string) {
	if body == "" {
		respondError(w, apierrors.NewGenericServerResponse(status, c.Verb, groupResource(c.resource), c.Name, "fault of a test", 0, true))
		return
	}
	if status < http.StatusMultipleChoices {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON) // the client must decode this content type
	}
	w.WriteHeader(status)
	_, _ = fmt.Fprint(w, body)
}

func forbidden(c call) error {
	where := "at the cluster scope"
	if c.Namespace != "" {
		where = fmt.Sprintf("in the namespace %q", c.Namespace)
	}
	return apierrors.NewForbidden(groupResource(c.resource), c.Name, fmt.Errorf(
		"user %q cannot %s resource %q in API group %q %s", "system:serviceaccount:kube-system:waggle", c.Verb,
		c.resource.Plural, c.resource.GroupVersion.Group, where))
}

func respondError(w http.ResponseWriter, err error) {
	status := statusOf(err)
	respondJSON(w, int(status.Code), status)
}

func statusOf(err error) *metav1.Status {
	status := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusBadRequest, Reason: metav1.StatusReasonBadRequest, Message: err.Error()}
	if known, ok := err.(apierrors.APIStatus); ok {
		status = known.Status()
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return &status
}

func groupResource(r kubeapi.Resource) schema.GroupResource {
	return schema.GroupResource{Group: r.GroupVersion.Group, Resource: r.Plural}
}
