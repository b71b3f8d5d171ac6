package apiserver

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/identity"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/namedcidrs"
)

// GetIdentity returns all identities that this node knows, identities of CIDRs last.
func (a *api) GetIdentity(w http.ResponseWriter, _ *http.Request) {
	txn := a.DB.ReadTxn()
	list := []models.Identity{}
	for row := range a.Identities.All(txn) {
		list = append(list, identityModel(row))
	}
	for row := range a.Policy.NamedCIDRs.All(txn) {
		if !row.Retired {
			list = append(list, a.cidrIdentityModel(row))
		}
	}
	respond(w, http.StatusOK, list)
}

// GetIdentityID returns one identity.
func (a *api) GetIdentityID(w http.ResponseWriter, _ *http.Request, id string) {
	number, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		fail(w, http.StatusBadRequest, fmt.Errorf("identity %.20q: want a number", id))
		return
	}
	txn := a.DB.ReadTxn()
	if row, _, found := a.Identities.Get(txn, identities.ByID(uint32(number))); found {
		respond(w, http.StatusOK, identityModel(row))
		return
	}
	if row, _, found := a.Policy.NamedCIDRs.Get(txn, namedcidrs.ByIdentity(uint32(number))); found {
		respond(w, http.StatusOK, a.cidrIdentityModel(row))
		return
	}
	respond(w, http.StatusNotFound, nil)
}

// GetIdentityEndpoints returns the identities of this node's endpoints.
func (a *api) GetIdentityEndpoints(w http.ResponseWriter, _ *http.Request) {
	txn := a.DB.ReadTxn()
	count := map[uint32]int64{}
	for row := range a.EndpointIdentities.All(txn) {
		count[row.Identity]++
	}
	list := []models.IdentityEndpoints{}
	for row := range a.Identities.All(txn) {
		if n := count[row.ID]; n > 0 {
			list = append(list, models.IdentityEndpoints{Identity: identityModel(row), RefCount: n})
		}
	}
	respond(w, http.StatusOK, list)
}

func identityModel(row *identities.Identity) models.Identity {
	return models.Identity{ID: int64(row.ID), Labels: identities.List(row.Labels)}
}

// cidrIdentityModel returns the identity of a range that policies name. Its reserved label is the world, of the range's family if both families are enabled.
func (a *api) cidrIdentityModel(row *namedcidrs.CIDR) models.Identity {
	world := identity.WorldOf(row.Prefix.Addr().Is6(), a.Settings.EnableIPv4 && a.Settings.EnableIPv6)
	return models.Identity{ID: int64(row.Identity), Labels: []string{"cidr:" + row.Prefix.String(), "reserved:" + identity.Name(world)}}
}
