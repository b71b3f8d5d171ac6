package apiserver

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// PatchEndpointID handles a deprecated call that old clients still make. The properties of an endpoint never change, so it accepts only requests that match the
// endpoint.
func (a *api) PatchEndpointID(w http.ResponseWriter, r *http.Request, id string) {
	body, ok := readBody[models.EndpointChangeRequest](w, r)
	if !ok {
		return
	}
	request, err := parseRequest(body)
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	a.with(w, id, func(ep *endpoints.Endpoint) {
		if err := confirm(ep, request); err != nil {
			fail(w, http.StatusBadRequest, err)
			return
		}
		respond(w, http.StatusOK, nil)
	})
}

// confirm returns an error if a field of the request differs from the endpoint.
func confirm(ep *endpoints.Endpoint, r endpoint.Request) error {
	if len(r.Labels) > 0 {
		return fmt.Errorf("%w: labels: use PATCH /endpoint/{id}/labels", endpoint.ErrInvalid)
	}
	return cmp.Or(
		same("container-id", ep.ContainerID, r.ContainerID),
		same("container-interface-name", ep.IfName, r.IfName),
		same("interface-name", ep.HostIfName, r.HostIfName),
		same("interface-index", ep.HostIfIndex, r.HostIfIndex),
		same("mac", ep.PodMAC, r.PodMAC),
		same("host-mac", ep.HostMAC, r.HostMAC),
		same("addressing.ipv4", ep.IPv4, r.IPv4),
		same("addressing.ipv6", ep.IPv6, r.IPv6),
		same("netns-cookie", ep.NetnsCookie, r.NetnsCookie),
		same("k8s-namespace", ep.K8sNamespace, r.K8sNamespace),
		same("k8s-pod-name", ep.K8sPodName, r.K8sPodName),
		same("k8s-uid", ep.K8sUID, r.K8sUID),
	)
}

// same compares a field. The zero value means that the request omits the field.
func same[T comparable](name string, is, given T) error {
	var absent T
	if given == absent || given == is {
		return nil
	}
	return fmt.Errorf("%w: %s: is %s and cannot be changed; delete the endpoint and create it again",
		endpoint.ErrInvalid, name, clip(fmt.Sprint(is)))
}
