package apiserver

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/tables/identities"
)

// GetIdentity answers with every identity that this node knows.
func (a *api) GetIdentity(w http.ResponseWriter, _ *http.Request) {
	list := []models.Identity{}
	for row := range a.Identities.All(a.DB.ReadTxn()) {
		list = append(list, identityModel(row))
	}
	answer(w, http.StatusOK, list)
}

// GetIdentityID answers with one identity.
func (a *api) GetIdentityID(w http.ResponseWriter, _ *http.Request, id string) {
	number, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		fail(w, http.StatusBadRequest, fmt.Errorf("identity %.20q: want a number", id))
		return
	}
	row, _, found := a.Identities.Get(a.DB.ReadTxn(), identities.ByID(uint32(number)))
	if !found {
		answer(w, http.StatusNotFound, nil)
		return
	}
	answer(w, http.StatusOK, identityModel(row))
}

// GetIdentityEndpoints answers with the identities that endpoints of this node have.
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
	answer(w, http.StatusOK, list)
}

func identityModel(row *identities.Identity) models.Identity {
	return models.Identity{ID: int64(row.ID), Labels: identities.List(row.Labels)}
}
