package cli

import (
	"fmt"

	"github.com/waggle-net/waggle/api/v1/models"
)

// enforcesNothing reports whether the node's flags disable all policies.
func enforcesNothing(c *models.DaemonConfiguration) bool {
	return c.Status.Realized.PolicyEnforcement == models.DaemonConfigurationSpecPolicyEnforcementNever
}

// switchedOff returns one phrase per policy feature that the node's flags disable. The policies themselves are cluster objects and cannot show this.
func switchedOff(c *models.DaemonConfiguration) (what []string) {
	if enforcesNothing(c) {
		what = append(what, "no policy is enforced on this node (--enable-policy=never)")
	}
	for _, kind := range []struct{ flag, objects string }{
		{"enable-k8s-networkpolicy", "NetworkPolicies are"},
		{"enable-cilium-network-policy", "CiliumNetworkPolicies and CiliumClusterwideNetworkPolicies are"},
	} {
		if value, found := c.Status.DaemonConfigurationMap[kind.flag]; found && fmt.Sprint(value) == "false" {
			what = append(what, kind.objects+" ignored on this node (--"+kind.flag+"=false)")
		}
	}
	return what
}
