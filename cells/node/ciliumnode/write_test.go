package ciliumnode

import (
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/kubernetes/lastapplied"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/localnode"
	"github.com/waggle-net/waggle/pkg/tables/nodeupdates"
)

func complete() wanted {
	return wanted{machine: machine{id: "m", bootID: "b", host: "h"}, node: &k8s.Node{Name: "one", UID: "u", Labels: map[string]string{"a": "b"}},
		local: &localnode.LocalNode{IPv4: localnode.Family{AllocRange: netip.MustParsePrefix("10.1.0.0/24"),
			Router: netip.MustParseAddr("10.1.0.1"), Health: netip.MustParseAddr("10.1.0.2")}}}
}

// TestWrite_Conflict_RetriesAndKeepsCIDRs lets the cluster role write CIDRs between the agent's read and write: the server rejects the write, and the retry keeps
// the CIDRs.
func TestWrite_Conflict_RetriesAndKeepsCIDRs(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	object := func(cidrs ...string) *ciliumv2.CiliumNode {
		return &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: ciliumv2.NodeSpec{IPAM: ciliumv2.NodeIPAM{PodCIDRs: cidrs}}}
	}
	s.Put(object())
	var done atomic.Bool
	s.Fault(func(r *http.Request) (int, string) {
		if r.Method == http.MethodPatch && done.CompareAndSwap(false, true) {
			s.Put(object("10.1.0.0/24"))
		}
		return 0, ""
	})
	c := &controller{params: params{Client: s.Client(t), Agent: agentconfig.Agent{NodeName: "one"}}}
	if err := c.write(t.Context(), complete(), &nodeupdates.Update{}); !apierrors.IsConflict(err) {
		t.Errorf("the first attempt: %v", err)
	}
	if err := c.write(t.Context(), complete(), &nodeupdates.Update{}); err != nil {
		t.Errorf("the second attempt: %v", err)
	}
	got := &ciliumv2.CiliumNode{}
	s.Get(kubeapi.CiliumNodes, "", "one", got)
	if !slices.Equal(got.Spec.IPAM.PodCIDRs, []string{"10.1.0.0/24"}) || len(got.Spec.Addresses) != 1 {
		t.Errorf("the CiliumNode has %+v", got.Spec)
	}
}

// TestChanges_NewObject_NeedsNoPatch checks that a new object needs no patch, with and without written CIDRs and known addresses.
func TestChanges_NewObject_NeedsNoPatch(t *testing.T) {
	t.Parallel()
	for _, writes := range []bool{false, true} {
		for _, known := range []bool{false, true} {
			w := complete()
			w.writesCIDRs = writes
			if !known {
				w.local = nil
			}
			if changes := w.changes(w.object()); len(changes) > 0 {
				t.Errorf("writes CIDRs %v, known %v: %v", writes, known, changes)
			}
		}
	}
}

// TestChanges_UnknownAddressesStay: right after a restart the object has addresses that the agent does not know yet, and it may be the only
// record of the router address.
func TestChanges_UnknownAddressesStay(t *testing.T) {
	t.Parallel()
	before := complete()
	before.writesCIDRs = true
	object := before.object()
	after := complete()
	after.writesCIDRs, after.local = true, nil
	if changes := after.changes(object); len(changes) > 0 {
		t.Errorf("changes %v", changes)
	}
}

// TestChanges_AddressesFollowCIDRs: with --ipam=cluster-pool the object has router and health addresses when it has the CIDRs with these addresses, because the
// admission policy rejects others. Addresses that the object has may stay.
func TestChanges_AddressesFollowCIDRs(t *testing.T) {
	t.Parallel()
	w := complete()
	router := []ciliumv2.NodeAddress{{Type: ciliumv2.CiliumInternalIP, IP: "10.1.0.1"}}
	health := ciliumv2.AddressPair{IPv4: "10.1.0.2"}
	created := w.object()
	if len(created.Spec.Addresses) > 0 || created.Spec.Health != (ciliumv2.AddressPair{}) {
		t.Errorf("a new object has %+v", created.Spec)
	}
	for name, c := range map[string]struct {
		have ciliumv2.NodeSpec
		ours bool // the agent wrote the CIDRs in another mode
		want bool // the object has the addresses
	}{
		"no CIDR":                     {ciliumv2.NodeSpec{}, false, false},
		"the CIDR of the addresses":   {ciliumv2.NodeSpec{IPAM: ciliumv2.NodeIPAM{PodCIDRs: []string{"10.1.0.0/24"}}}, false, true},
		"another CIDR":                {ciliumv2.NodeSpec{IPAM: ciliumv2.NodeIPAM{PodCIDRs: []string{"x", "10.2.0.0/24"}}}, false, false},
		"the addresses":               {ciliumv2.NodeSpec{Addresses: router, Health: health}, false, true},
		"a CIDR that will be removed": {ciliumv2.NodeSpec{IPAM: ciliumv2.NodeIPAM{PodCIDRs: []string{"10.1.0.0/24"}}}, true, false},
	} {
		have := &ciliumv2.CiliumNode{Spec: c.have}
		if c.ours {
			have.Annotations = map[string]string{lastapplied.Annotation: `{"spec.ipam.podCIDRs":"10.1.0.0/24"}`}
		}
		got := w.publishable(have)
		if has := slices.Equal(got.Addresses, router) && got.Health == health; has != c.want || !has && len(got.Addresses) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	w.writesCIDRs = true
	if spec := w.object().Spec; !slices.Equal(spec.Addresses, router) || spec.Health != health {
		t.Errorf("with --ipam=kubernetes a new object has %+v", spec)
	}
}

func TestOwners(t *testing.T) {
	t.Parallel()
	w := complete()
	ours := w.owner()
	flagged, other, older := ours, ours, ours
	yes := true
	flagged.Controller = &yes
	other.Kind, other.APIVersion = "Lease", "coordination.k8s.io/v1"
	older.UID = "before"
	for name, test := range map[string]struct{ have, want []metav1.OwnerReference }{
		"none":                  {nil, []metav1.OwnerReference{ours}},
		"ours":                  {[]metav1.OwnerReference{ours}, []metav1.OwnerReference{ours}},
		"with a flag":           {[]metav1.OwnerReference{flagged}, []metav1.OwnerReference{flagged}},
		"also of another owner": {[]metav1.OwnerReference{other, ours}, []metav1.OwnerReference{other, ours}},
		"of an older Node":      {[]metav1.OwnerReference{older, other}, []metav1.OwnerReference{other, ours}},
		"doubled":               {[]metav1.OwnerReference{ours, ours}, []metav1.OwnerReference{ours}},
	} {
		if got := w.owners(test.have); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
