package apiserver

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// PutEndpointID creates an endpoint. The id in the path is not used.
func (a *api) PutEndpointID(w http.ResponseWriter, r *http.Request, _ string) {
	body, ok := readBody[models.EndpointChangeRequest](w, r)
	if !ok {
		return
	}
	request, err := parseRequest(body)
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	ep, err := a.Manager.Create(r.Context(), request)
	if err != nil {
		fail(w, createStatus(err), err)
		return
	}
	respond(w, http.StatusCreated, a.view().endpoint(ep))
}

// createStatus returns 400 for errors that the caller can correct and 500 for the others. Conflicts are 400, as in Cilium.
func createStatus(err error) int {
	for _, callers := range []error{endpoint.ErrInvalid, endpoint.ErrExists, endpoint.ErrFull, endpoint.ErrUnsupported,
		ipam.ErrTaken, ipam.ErrExpired, ipam.ErrNotInRange, ipam.ErrExcluded, ipam.ErrBadPool, ipam.ErrNoRange} {
		if errors.Is(err, callers) {
			return http.StatusBadRequest
		}
	}
	return http.StatusInternalServerError
}

// GetEndpoint lists endpoints. A body may contain labels that the endpoints must have.
func (a *api) GetEndpoint(w http.ResponseWriter, r *http.Request) {
	var labels []string
	if r.ContentLength != 0 {
		var ok bool
		if labels, ok = readBody[[]string](w, r); !ok {
			return
		}
	}
	list := a.view().endpoints(labels)
	if len(labels) > 0 && len(list) == 0 {
		respond(w, http.StatusNotFound, nil)
		return
	}
	respond(w, http.StatusOK, list)
}

// endpoints returns the endpoints of this node that have all labels.
func (v view) endpoints(labels []string) []models.Endpoint {
	list := make([]models.Endpoint, 0, v.Ready.Endpoints.NumObjects(v.txn))
	for ep := range v.Ready.Endpoints.All(v.txn) {
		if carries(ep, labels, v.identity(ep).Labels) {
			list = append(list, v.endpoint(ep))
		}
	}
	return list
}

// carries reports whether ep or its identity has all labels; "source:key" without a value matches any value.
func carries(ep *endpoints.Endpoint, labels, identity []string) bool {
	for _, label := range labels {
		if slices.Contains(identity, label) {
			continue
		}
		key, value, valued := cutLabel(label)
		got, found := ep.Labels[key]
		if !found || valued && got != value {
			return false
		}
	}
	return true
}

// with calls do with the endpoint of an id, or writes the error reply.
func (a *api) with(w http.ResponseWriter, id string, do func(*endpoints.Endpoint)) {
	ep, err := a.Manager.Lookup(id)
	switch {
	case err == nil:
		do(ep)
	case errors.Is(err, endpoint.ErrNotFound):
		respond(w, http.StatusNotFound, nil)
	default:
		fail(w, http.StatusBadRequest, err)
	}
}

// GetEndpointID returns one endpoint.
func (a *api) GetEndpointID(w http.ResponseWriter, _ *http.Request, id string) {
	a.with(w, id, func(ep *endpoints.Endpoint) { respond(w, http.StatusOK, a.view().endpoint(ep)) })
}

// GetEndpointIDLog returns the log of state changes of an endpoint.
func (a *api) GetEndpointIDLog(w http.ResponseWriter, _ *http.Request, id string) {
	a.with(w, id, func(ep *endpoints.Endpoint) { respond(w, http.StatusOK, history(a.view().state(ep.ID))) })
}

// GetEndpointIDHealthz returns the health of an endpoint.
func (a *api) GetEndpointIDHealthz(w http.ResponseWriter, _ *http.Request, id string) {
	a.with(w, id, func(ep *endpoints.Endpoint) { respond(w, http.StatusOK, healthOf(a.view().state(ep.ID))) })
}

// GetEndpointIDConfig returns the options of an endpoint, which are the same for all endpoints.
func (a *api) GetEndpointIDConfig(w http.ResponseWriter, _ *http.Request, id string) {
	a.with(w, id, func(ep *endpoints.Endpoint) {
		respond(w, http.StatusOK, models.EndpointConfigurationStatus{Realized: a.endpointSpec(ep)})
	})
}

// PatchEndpointIDConfig changes labels. It rejects changes of options.
func (a *api) PatchEndpointIDConfig(w http.ResponseWriter, r *http.Request, id string) {
	body, ok := readBody[models.EndpointConfigurationSpec](w, r)
	if !ok {
		return
	}
	a.with(w, id, func(*endpoints.Endpoint) {
		if err := a.unchanged(body.Options); err != nil {
			fail(w, http.StatusBadRequest, err)
			return
		}
		if body.LabelConfiguration.User == nil {
			respond(w, http.StatusOK, nil)
			return
		}
		a.setLabels(w, id, body.LabelConfiguration.User)
	})
}

// GetEndpointIDLabels returns the labels of an endpoint.
func (a *api) GetEndpointIDLabels(w http.ResponseWriter, _ *http.Request, id string) {
	a.with(w, id, func(ep *endpoints.Endpoint) {
		status := labelStatus(ep, a.view().identity(ep).Labels)
		respond(w, http.StatusOK, models.LabelConfiguration{Spec: status.Realized, Status: status})
	})
}

// PatchEndpointIDLabels replaces the labels that users set.
func (a *api) PatchEndpointIDLabels(w http.ResponseWriter, r *http.Request, id string) {
	body, ok := readBody[models.LabelConfigurationSpec](w, r)
	if !ok {
		return
	}
	a.with(w, id, func(*endpoints.Endpoint) { a.setLabels(w, id, body.User) })
}

func (a *api) setLabels(w http.ResponseWriter, id string, labels []string) {
	_, err := a.Manager.SetLabels(id, labels)
	switch {
	case err == nil:
		respond(w, http.StatusOK, nil)
	case errors.Is(err, endpoint.ErrNotFound): // deleted after the look-up
		respond(w, http.StatusNotFound, nil)
	case errors.Is(err, endpoint.ErrInvalid):
		fail(w, http.StatusBadRequest, err)
	default:
		fail(w, http.StatusInternalServerError, err)
	}
}

// DeleteEndpointID deletes one endpoint.
func (a *api) DeleteEndpointID(w http.ResponseWriter, r *http.Request, id string) {
	err := a.Manager.Delete(r.Context(), id)
	switch {
	case errors.Is(err, endpoint.ErrNotFound):
		respond(w, http.StatusNotFound, nil)
	case errors.Is(err, endpoint.ErrInvalid), errors.Is(err, endpoint.ErrUnsupported):
		fail(w, http.StatusBadRequest, err)
	default:
		_, lookup := a.Manager.Lookup(id)
		a.deleted(w, r, err, errors.Is(lookup, endpoint.ErrNotFound))
	}
}

// DeleteEndpoint deletes all endpoints of a container.
func (a *api) DeleteEndpoint(w http.ResponseWriter, r *http.Request) {
	body, ok := readBody[models.EndpointBatchDeleteRequest](w, r)
	if !ok {
		return
	}
	if body.ContainerID == "" {
		fail(w, http.StatusBadRequest, errors.New("container-id: missing"))
		return
	}
	n, err := a.Manager.DeleteContainer(r.Context(), body.ContainerID)
	if n == 0 && err == nil {
		respond(w, http.StatusNotFound, nil)
		return
	}
	_, _, found := a.Ready.Endpoints.Get(a.DB.ReadTxn(), endpoints.ByContainer(body.ContainerID))
	a.deleted(w, r, err, !found)
}

// deleted replies to a deletion. If the endpoint is gone in spite of errors, the reply is 206 with the number of errors, as in Cilium.
func (a *api) deleted(w http.ResponseWriter, r *http.Request, err error, gone bool) {
	switch {
	case err == nil:
		respond(w, http.StatusOK, nil)
	case gone && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		a.Log.Warn("An endpoint was deleted, with errors", "path", r.URL.Path, "error", err)
		respond(w, http.StatusPartialContent, countErrors(err))
	default:
		fail(w, http.StatusInternalServerError, err)
	}
}

// countErrors counts the errors that were joined into err.
func countErrors(err error) int {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		n := 0
		for _, inner := range e.Unwrap() {
			n += countErrors(inner)
		}
		return n
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return countErrors(inner)
		}
	}
	return 1
}
