package apiserver

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/ipam"
)

// waitRestored waits until the addresses of the run before are held, so that none of them is given out again. Only what
// waits ends with its request: a client that has closed its sending side counts as gone, and still reads the answer.
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
		return fmt.Errorf("the agent is starting: the endpoints of the run before are not restored yet: %w", r.Context().Err())
	}
}

// PostIPAM gives the next free addresses.
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
	answer(w, http.StatusCreated, a.ipamResponse(result))
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

// PostIPAMIP gives one address.
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
	answer(w, http.StatusOK, nil)
}

// DeleteIPAMIP takes one address back. An address that nobody has is no error; one that an endpoint uses is.
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
	// Cilium refuses an empty pool; here it means the default pool, as in POST.
	if _, err := a.Allocator.Release(addr, or(p.Pool), ""); err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	answer(w, http.StatusOK, nil)
}

func parseAddr(s string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(s)
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}, errors.New("ip in path: " + clip(s) + ": want an IPv4 or IPv6 address")
	}
	return addr.Unmap(), nil
}

// or is the value of a parameter, or its zero value.
func or[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// text prints an address or prefix; an invalid one is empty.
func text(v interface {
	IsValid() bool
	String() string
}) string {
	if !v.IsValid() {
		return ""
	}
	return v.String()
}
