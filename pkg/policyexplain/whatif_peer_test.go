package policyexplain

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/api/v1/models"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/flows"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// relabelled returns a fixture in which shop/cart (302) connected to shop/web and shop/free, and then changed its labels to app free (303).
func relabelled(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for endpoint, dst := range map[uint16]string{webID: "10.0.0.1", freeID: "10.0.0.3"} {
		insert(t, f.tables.DB, f.flows, &flows.Flow{Endpoint: endpoint, Direction: policy.Ingress, Protocol: policy.ProtocolTCP, Port: 80,
			Src: netip.MustParseAddr("10.0.0.2"), Dst: netip.MustParseAddr(dst), Peer: 302, Count: 1, First: now, Last: now})
	}
	cart := netip.MustParsePrefix("10.0.0.2/32")
	insert(t, f.tables.DB, f.tables.IPCache.(statedb.RWTable[*ipcache.Entry]), ipcache.NewEntry(ipcache.Claim{Prefix: cart, Identity: 303}, cart.String()))
	for row := range f.tables.EndpointPolicies.All(f.tables.DB.ReadTxn()) {
		if row.EndpointID == cartID {
			changed := *row
			changed.Identity = 303
			insert(t, f.tables.DB, f.published, &changed)
		}
	}
	return f
}

// A flow is evaluated and shown with the identity that its peer had at the time. Another pod may have the peer's address now.
func TestWhatIf_PeerHasOtherLabelsNow(t *testing.T) {
	t.Parallel()
	f := relabelled(t)
	const cartNoMore = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: web, namespace: shop}, " +
		"spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: free}}}]}]}}"
	d, err := f.tables.View().WhatIf(models.PolicyWhatIf{Manifests: cartNoMore}, f.flows)
	if err != nil {
		t.Fatal(err)
	}
	if d.Flows != 2 || d.Unknown != 0 || len(d.Allowed) != 0 || len(d.Denied) != 1 {
		t.Fatalf("got %+v, want one flow that becomes denied", d)
	}
	from := d.Denied[0].From
	if from.Identity != 302 || !slices.Contains(from.Labels, "k8s:app=cart") || from.Pod != "" || from.Endpoint != 0 || from.Address != "10.0.0.2" {
		t.Errorf("the peer is shown as %+v, want what it was when it was seen", from)
	}
	if to := d.Denied[0].To; to.Pod != "shop/web" || to.Identity != 301 {
		t.Errorf("the endpoint is shown as %+v", to)
	}
	if text := d.Denied[0].Text; !strings.Contains(text, "the peer does not have") {
		t.Errorf("it is said to be denied because %q", text)
	}

	// A policy that allows the previous labels of the peer changes no verdict.
	const freeFromFree = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: new, namespace: shop}, " +
		"spec: {podSelector: {matchLabels: {app: free}}, ingress: [{from: [{podSelector: {matchLabels: {app: cart}}}]}]}}"
	if d, err = f.tables.View().WhatIf(models.PolicyWhatIf{Manifests: freeFromFree}, f.flows); err != nil || len(d.Denied)+len(d.Allowed) != 0 {
		t.Errorf("a policy that lets in what the peer was: %+v (%v)", d, err)
	}
}

// The identity with the previous labels no longer exists, so the verdict of such a flow is unknown.
func TestWhatIf_PeerIdentityRemoved_IsUnknown(t *testing.T) {
	t.Parallel()
	f := relabelled(t)
	ids := f.tables.Identities.(statedb.RWTable[*identities.Identity])
	txn := f.tables.DB.WriteTxn(ids)
	_, _, _ = ids.Delete(txn, &identities.Identity{ID: 302})
	txn.Commit()
	d, err := f.tables.View().WhatIf(models.PolicyWhatIf{Delete: []string{"shop/web"}}, f.flows)
	if err != nil || d.Flows != 0 || d.Unknown != 2 || len(d.Allowed)+len(d.Denied) != 0 {
		t.Errorf("got %+v (%v), want two flows left out", d, err)
	}
}
