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
	answer(w, http.StatusCreated, a.view().endpoint(ep))
}

// createStatus is 400 for what the caller can change and 500 for the rest. Conflicts are 400, as in Cilium.
func createStatus(err error) int {
	for _, callers := range []error{endpoint.ErrInvalid, endpoint.ErrExists, endpoint.ErrFull, endpoint.ErrUnsupported,
		ipam.ErrTaken, ipam.ErrExpired, ipam.ErrNotInRange, ipam.ErrExcluded, ipam.ErrBadPool, ipam.ErrNoRange} {
		if errors.Is(err, callers) {
			return http.StatusBadRequest
		}
	}
	return http.StatusInternalServerError
}

// GetEndpoint lists endpoints; a body may hold the labels that they must carry.
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
		answer(w, http.StatusNotFound, nil)
		return
	}
	answer(w, http.StatusOK, list)
}

// endpoints are those of this node with all labels.
func (v view) endpoints(labels []string) []models.Endpoint {
	list := make([]models.Endpoint, 0, v.Ready.Endpoints.NumObjects(v.txn))
	for ep := range v.Ready.Endpoints.All(v.txn) {
		if carries(ep, labels, v.identity(ep).Labels) {
			list = append(list, v.endpoint(ep))
		}
	}
	return list
}

// carries tells whether ep, or its identity, has all labels; "source:key" without a value stands for any value.
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

// with answers a request about one endpoint: it finds the endpoint, or says why not.
func (a *api) with(w http.ResponseWriter, id string, do func(*endpoints.Endpoint)) {
	ep, err := a.Manager.Lookup(id)
	switch {
	case err == nil:
		do(ep)
	case errors.Is(err, endpoint.ErrNotFound):
		answer(w, http.StatusNotFound, nil)
	default:
		fail(w, http.StatusBadRequest, err)
	}
}

// GetEndpointID answers with one endpoint.
func (a *api) GetEndpointID(w http.ResponseWriter, _ *http.Request, id string) {
	a.with(w, id, func(ep *endpoints.Endpoint) { answer(w, http.StatusOK, a.view().endpoint(ep)) })
}

// GetEndpointIDLog answers with what happened to an endpoint.
func (a *api) GetEndpointIDLog(w http.ResponseWriter, _ *http.Request, id string) {
	a.with(w, id, func(ep *endpoints.Endpoint) { answer(w, http.StatusOK, history(a.view().state(ep.ID))) })
}

// GetEndpointIDHealthz answers with the health of an endpoint.
func (a *api) GetEndpointIDHealthz(w http.ResponseWriter, _ *http.Request, id string) {
	a.with(w, id, func(ep *endpoints.Endpoint) { answer(w, http.StatusOK, healthOf(a.view().state(ep.ID))) })
}

// GetEndpointIDConfig answers with the options of an endpoint, which are the same for all.
func (a *api) GetEndpointIDConfig(w http.ResponseWriter, _ *http.Request, id string) {
	a.with(w, id, func(ep *endpoints.Endpoint) {
		answer(w, http.StatusOK, models.EndpointConfigurationStatus{Realized: a.endpointSpec(ep)})
	})
}

// PatchEndpointIDConfig changes labels; options must stay as they are.
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
			answer(w, http.StatusOK, nil)
			return
		}
		a.setLabels(w, id, body.LabelConfiguration.User)
	})
}

// GetEndpointIDLabels answers with the labels of an endpoint.
func (a *api) GetEndpointIDLabels(w http.ResponseWriter, _ *http.Request, id string) {
	a.with(w, id, func(ep *endpoints.Endpoint) {
		status := labelStatus(ep, a.view().identity(ep).Labels)
		answer(w, http.StatusOK, models.LabelConfiguration{Spec: status.Realized, Status: status})
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
		answer(w, http.StatusOK, nil)
	case errors.Is(err, endpoint.ErrNotFound): // it went away between the look-up and now
		answer(w, http.StatusNotFound, nil)
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
		answer(w, http.StatusNotFound, nil)
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
		answer(w, http.StatusNotFound, nil)
		return
	}
	_, _, found := a.Ready.Endpoints.Get(a.DB.ReadTxn(), endpoints.ByContainer(body.ContainerID))
	a.deleted(w, r, err, !found)
}

// deleted answers a deletion: 206 when the endpoint is gone in spite of errors, with their number as Cilium has it.
func (a *api) deleted(w http.ResponseWriter, r *http.Request, err error, gone bool) {
	switch {
	case err == nil:
		answer(w, http.StatusOK, nil)
	case gone && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		a.Log.Warn("An endpoint was deleted, with errors", "path", r.URL.Path, "error", err)
		answer(w, http.StatusPartialContent, countErrors(err))
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
