package apiserver

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/ipam"
)

// waitRestored waits until the addresses of the previous run are held, so that none of them is allocated again. It checks the context of the request only if it
// must wait: the server cancels the context of a client that has closed its sending side, but the client still reads the reply.
func (a *api) waitRestored(r *http.Request) error {
	select {
	case <-a.Manager.Restored():
		return nil
	default:
	}
	select {
	case <-a.Manager.Restored():
		return nil
	case <-r.Context().Done():
		return fmt.Errorf("the agent is starting: the endpoints of the previous run are not restored yet: %w", r.Context().Err())
	}
}

// PostIPAM allocates the next free address of each family.
func (a *api) PostIPAM(w http.ResponseWriter, r *http.Request, p models.PostIPAMParams) {
	request := ipam.Request{Owner: or(p.Owner), Pool: or(p.Pool), Expire: or(p.Expiration)}
	switch family := or(p.Family); family {
	case "":
	case models.PostIPAMParamsFamilyIpv4:
		request.IPv4 = true
	case models.PostIPAMParamsFamilyIpv6:
		request.IPv6 = true
	default:
		reject(w, http.StatusUnprocessableEntity, fmt.Sprintf("family in query: %s: want ipv4 or ipv6", clip(string(family))))
		return
	}
	if err := a.waitRestored(r); err != nil {
		fail(w, http.StatusBadGateway, err)
		return
	}
	result, err := a.Allocator.Next(r.Context(), request)
	if err != nil {
		fail(w, http.StatusBadGateway, err)
		return
	}
	respond(w, http.StatusCreated, a.ipamResponse(result))
}

func (a *api) ipamResponse(result ipam.Result) models.IPAMResponse {
	response := models.IPAMResponse{HostAddressing: a.addressing(a.DB.ReadTxn())}
	if v4 := result.IPv4; v4 != nil {
		response.Address.Ipv4, response.Address.Ipv4PoolName = v4.Addr.String(), v4.Pool
		response.Ipv4 = allocated(v4)
	}
	if v6 := result.IPv6; v6 != nil {
		response.Address.Ipv6, response.Address.Ipv6PoolName = v6.Addr.String(), v6.Pool
		response.Ipv6 = allocated(v6)
	}
	return response
}

func allocated(al *ipam.Allocation) models.IPAMAddressResponse {
	return models.IPAMAddressResponse{
		IP: al.Addr.String(), Gateway: text(al.Gateway), Cidrs: []string{al.Range.String()}, ExpirationUUID: al.UUID,
	}
}

// PostIPAMIP allocates one named address.
func (a *api) PostIPAMIP(w http.ResponseWriter, r *http.Request, ip string, p models.PostIPAMIPParams) {
	addr, err := parseAddr(ip)
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	if err := a.waitRestored(r); err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	if err := a.Allocator.Specific(r.Context(), addr, or(p.Owner), or(p.Pool)); err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	respond(w, http.StatusOK, nil)
}

// DeleteIPAMIP releases one address. A free address is not an error; an address of an endpoint is.
func (a *api) DeleteIPAMIP(w http.ResponseWriter, r *http.Request, ip string, p models.DeleteIPAMIPParams) {
	addr, err := parseAddr(ip)
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	if err := a.waitRestored(r); err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	// Cilium rejects an empty pool; Waggle takes it as the default pool, as in POST.
	if _, err := a.Allocator.Release(addr, or(p.Pool), ""); err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	respond(w, http.StatusOK, nil)
}

func parseAddr(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}, errors.New("ip in path: " + clip(s) + ": want an IPv4 or IPv6 address")
	}
	return addr.Unmap(), nil
}

// or returns the value of a parameter, or the zero value without one.
func or[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// text returns an address or prefix as text; an invalid one is empty.
func text(v interface {
	IsValid() bool
	String() string
}) string {
	if !v.IsValid() {
		return ""
	}
	return v.String()
}
