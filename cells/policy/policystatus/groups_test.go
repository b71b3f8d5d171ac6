package policystatus

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cilium/statedb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi/kubetest"
	"github.com/waggle-net/waggle/pkg/policy"
)

// A policy that refers to a group is Valid while the group exists. The conditions of other policies are not written again.
func TestStatus_FollowsGroups(t *testing.T) {
	t.Parallel()
	const refers = `{"endpointSelector": {}, "egress": [{"toCIDRSet": [{"cidrGroupRef": "vpn"}]}]}`
	s := kubetest.New(t)
	s.Put(ciliumPolicy("p", refers), ciliumPolicy("other", plain))
	start(t, s)
	is := func(status, reason, message string) func() bool {
		return func() bool {
			c, _ := condition(s, "p")
			return c.Status == status && c.Reason == reason && strings.Contains(c.Message, message)
		}
	}
	s.Await(t, "there is no group", is(invalid, policy.ReasonAbsent, `no CiliumCIDRGroup "vpn"`))
	s.Put(&ciliumv2.CiliumCIDRGroup{ObjectMeta: metav1.ObjectMeta{Name: "office"}, Spec: ciliumv2.CIDRGroupSpec{ExternalCIDRs: []string{"10.0.0.0/8"}}})
	vpn := &ciliumv2.CiliumCIDRGroup{ObjectMeta: metav1.ObjectMeta{Name: "vpn"}, Spec: ciliumv2.CIDRGroupSpec{ExternalCIDRs: []string{"10.0.0.0/8"}}}
	s.Put(vpn)
	s.Await(t, "there is one", is(valid, reasonEnforceable, ""))
	vpn.Spec.ExternalCIDRs = []string{"10.0.0.0/8", "moon"}
	s.Put(vpn)
	s.Await(t, "an entry is none", is(invalid, policy.ReasonInvalid, "cannot be read"))
	if !s.Remove(kubeapi.CiliumCIDRGroups, "", "vpn") {
		t.Fatal("the group is not there")
	}
	s.Await(t, "it is gone", is(invalid, policy.ReasonAbsent, ""))
	if n := count(s, "patch", patched); n != 5 {
		t.Errorf("%d conditions were written, want 4 of the policy that refers to the group and 1 of the other", n)
	}
}

// Groups are not known to a new leader, or to a leader without the right to list them. Policies that refer to groups wait, and no other policies.
func TestStatus_UnknownGroups(t *testing.T) {
	t.Parallel()
	const refers = `{"endpointSelector": {}, "egress": [{"toCIDRSet": [{"cidrGroupRef": "vpn"}]}]}`
	s := kubetest.New(t)
	var forbidden atomic.Bool
	s.Fault(func(r *http.Request) (int, string) {
		if forbidden.Load() && strings.Contains(r.URL.Path, "ciliumcidrgroups") {
			return http.StatusForbidden, ""
		}
		return 0, ""
	})
	is := func(name, reason string) func() bool {
		return func() bool { c, _ := condition(s, name); return c.Reason == reason }
	}
	forbidden.Store(true)
	s.Put(ciliumPolicy("p", refers), ciliumPolicy("plain", plain))
	r := start(t, s)
	s.Await(t, "one without groups is judged", is("plain", reasonEnforceable))
	if !is("p", "")() {
		t.Error("one with groups is judged")
	}
	s.Put(&ciliumv2.CiliumCIDRGroup{ObjectMeta: metav1.ObjectMeta{Name: "vpn"}, Spec: ciliumv2.CIDRGroupSpec{ExternalCIDRs: []string{"10.0.0.0/8"}}})
	forbidden.Store(false)
	s.Await(t, "groups are known", is("p", reasonEnforceable))

	r.lead(t, false)
	for txn, rows := r.db.ReadTxn(), 1; rows > 0; {
		table := statedb.AnyTable{Meta: r.db.GetTable(txn, "policy-cidrgroups")}
		all, changed := table.AllWatch(txn)
		rows = 0
		for range all {
			rows++
		}
		if rows > 0 {
			<-changed
			txn = r.db.ReadTxn()
		}
	}
	forbidden.Store(true)
	s.Remove(kubeapi.CiliumCIDRGroups, "", "vpn")
	s.Put(ciliumPolicy("later", refers), ciliumPolicy("other", plain))
	r.lead(t, true)
	s.Await(t, "one without groups is judged again", is("other", reasonEnforceable))
	if !is("later", "")() {
		t.Error("a policy is evaluated with the groups of the previous term")
	}
	forbidden.Store(false)
	s.Await(t, "the groups of now are known", func() bool { return is("p", policy.ReasonAbsent)() && is("later", policy.ReasonAbsent)() })
}

// If the definition of CiliumCIDRGroups is not installed, no groups exist and policies are evaluated.
func TestStatus_WithoutGroupDefinition(t *testing.T) {
	t.Parallel()
	s := kubetest.New(t)
	s.Fault(func(r *http.Request) (int, string) {
		if strings.Contains(r.URL.Path, "ciliumcidrgroups") {
			return http.StatusNotFound, ""
		}
		return 0, ""
	})
	s.Put(ciliumPolicy("p", `{"endpointSelector": {}, "egress": [{"toCIDRSet": [{"cidrGroupRef": "vpn"}]}]}`))
	start(t, s)
	s.Await(t, "it is judged", func() bool { c, _ := condition(s, "p"); return c.Reason == policy.ReasonAbsent })
}
