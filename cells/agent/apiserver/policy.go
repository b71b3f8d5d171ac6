package apiserver

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/policyexplain"
	"github.com/waggle-net/waggle/pkg/tables/policies"
)

// errPolicySource explains why this API cannot change policies.
var errPolicySource = errors.New("policies are not written over this API: they come from Kubernetes (kubectl apply), " +
	"or without it from the directory of manifests (--manifests-dir)")

// PutPolicy is not supported.
func (a *api) PutPolicy(w http.ResponseWriter, _ *http.Request) {
	fail(w, http.StatusNotImplemented, errPolicySource)
}

// DeletePolicy is not supported.
func (a *api) DeletePolicy(w http.ResponseWriter, _ *http.Request) {
	fail(w, http.StatusNotImplemented, errPolicySource)
}

// GetPolicy returns all policies.
func (a *api) GetPolicy(w http.ResponseWriter, _ *http.Request) {
	all, err := a.policies(a.DB.ReadTxn())
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	respond(w, http.StatusOK, all)
}

func (a *api) policies(txn statedb.ReadTxn) (models.Policy, error) {
	list := []*policies.Policy{}
	for p := range a.Policy.Policies.All(txn) {
		list = append(list, p)
	}
	text, err := json.Marshal(list)
	return models.Policy{Revision: int64(a.Policy.Policies.Revision(txn)), Policy: string(text)}, err
}

// GetPolicySelectors returns the selectors of policies with the identities that they select.
func (a *api) GetPolicySelectors(w http.ResponseWriter, _ *http.Request) {
	respond(w, http.StatusOK, a.Policy.View().Selectors())
}

// GetPolicyExplain evaluates the policies for a connection between two peers and explains the verdict.
func (a *api) GetPolicyExplain(w http.ResponseWriter, _ *http.Request, p models.GetPolicyExplainParams) {
	e, err := a.Policy.View().Explain(p.From, p.To, p.Port, policyexplain.Maps{Maps: a.MapReader})
	switch {
	case errors.Is(err, policyexplain.ErrUnknown):
		fail(w, http.StatusNotFound, err)
	case err != nil:
		fail(w, http.StatusBadRequest, err)
	default:
		respond(w, http.StatusOK, e)
	}
}

// PostPolicyWhatIf reports which recorded flows would change their verdict if policies were changed.
func (a *api) PostPolicyWhatIf(w http.ResponseWriter, r *http.Request) {
	body, ok := readBody[models.PolicyWhatIf](w, r)
	if !ok {
		return
	}
	difference, err := a.Policy.View().WhatIf(body, a.Flows)
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	respond(w, http.StatusOK, difference)
}
