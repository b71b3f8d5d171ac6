package cli

import (
	"fmt"

	"github.com/waggle-net/waggle/api/v1/models"
)

// enforcesNothing tells whether the node's flags switch all policies off.
func enforcesNothing(c *models.DaemonConfiguration) bool {
	return c.Status.Realized.PolicyEnforcement == models.DaemonConfigurationSpecPolicyEnforcementNever
}

// switchedOff says, a phrase each, what the node's flags take from policies. Their objects cannot: they are the cluster's.
func switchedOff(c *models.DaemonConfiguration) (what []string) {
	if enforcesNothing(c) {
		what = append(what, "no policy is enforced on this node (--enable-policy=never)")
	}
	for _, kind := range []struct{ flag, objects string }{
		{"enable-k8s-networkpolicy", "NetworkPolicies are"},
		{"enable-cilium-network-policy", "CiliumNetworkPolicies and CiliumClusterwideNetworkPolicies are"},
	} {
		if value, found := c.Status.DaemonConfigurationMap[kind.flag]; found && fmt.Sprint(value) == "false" {
			what = append(what, kind.objects+" left out on this node (--"+kind.flag+"=false)")
		}
	}
	return what
}
