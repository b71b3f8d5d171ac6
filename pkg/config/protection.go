package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// AcceptFlag is the name of the flag that lists the options of Cilium whose protection is not required.
const AcceptFlag = "accept-unprotected"

// protection describes a protection that Cilium has with some options, and Waggle lacks.
type protection struct {
	keys   string            // separated by spaces
	on     func(string) bool // reports whether a value enables the protection; never called with an empty value
	lost   string            // effect of the missing protection
	remedy string
}

var protections = []protection{
	{"enable-wireguard enable-ipsec enable-ipsec-encrypted-overlay enable-ztunnel encrypt-node", enabled,
		"packets between nodes are not encrypted", "encrypt the network between the nodes (a VPN, MACsec), or let applications encrypt"},
	{"enable-encryption-strict-mode enable-encryption-strict-mode-egress enable-encryption-strict-mode-ingress", enabled,
		"packets between nodes that are not encrypted are not dropped", "drop them in the network between the nodes"},
	{"enable-host-firewall", enabled,
		"policies with a nodeSelector are not enforced", "protect nodes with a firewall of their own (nftables, ufw, firewalld)"},
	{"policy-audit-mode", enabled,
		"policies are enforced, and deny connections that Cilium only reports", "annotate policies with policy.waggle.io/mode: audit, or set enable-policy to never"},
	{"enable-endpoint-lockdown-on-policy-overflow", enabled,
		"endpoints whose policy does not fit into the maps keep the policy that they had, and are not cut off",
		"alert on waggle_policy_not_enforced{reason=\"Overflow\"}, and raise bpf-policy-map-max"},
	{"static-cnp-path", given,
		"policies in files of the directory are not enforced", "apply them with kubectl"},
	{"bpf-lb-source-range-all-types", enabled,
		"loadBalancerSourceRanges apply to addresses of load balancers only", "limit clients of node ports and external IPs in the network, or by policies for the backends"},
	{"enable-xdp-prefilter", enabled, prefilterLost, prefilterRemedy},
	{"prefilter-device", func(value string) bool { return value != "undefined" }, prefilterLost, prefilterRemedy}, // of Cilium 1.9 and older
}

const (
	prefilterLost   = "packets from CIDRs of the prefilter are not dropped"
	prefilterRemedy = "drop them in the network, or in nftables on the nodes"
)

// enabled reports whether a value is not false. A value that is not a Boolean counts as true.
func enabled(value string) bool {
	on, err := strconv.ParseBool(value)
	return on || err != nil
}

func given(string) bool { return true }

// protective returns the protection that an option of Cilium enables with a value. It is empty when there is none.
func protective(key, value string) protection {
	for _, p := range protections {
		if value != "" && slices.Contains(strings.Fields(p.keys), key) && p.on(value) {
			return p
		}
	}
	return protection{}
}

// CheckProtection returns one error that names all ignored options whose protection Waggle lacks, except options with accepted keys. It also returns an error
// for an accepted key that is not the key of such an option.
func (e Effective) CheckProtection(accepted []string) error {
	var known, keys, losses []string
	for _, p := range protections {
		known = append(known, strings.Fields(p.keys)...)
	}
	slices.Sort(known)
	for _, key := range accepted {
		if !slices.Contains(known, key) {
			return fmt.Errorf("--%s=%s: want options of Cilium that protect what Waggle does not: %s", AcceptFlag, shorten(key), strings.Join(known, ", "))
		}
	}
	origins := map[string][]string{} // by effect and remedy
	for _, o := range e.Ignored {
		if o.Unprotected == "" || slices.Contains(accepted, o.Key) {
			continue
		}
		loss := o.Unprotected + "; " + o.Remedy
		if origins[loss] == nil {
			losses = append(losses, loss)
		}
		origins[loss], keys = append(origins[loss], o.Origin), append(keys, o.Key)
	}
	if len(keys) == 0 {
		return nil
	}
	var lines strings.Builder
	for _, loss := range losses {
		fmt.Fprintf(&lines, "\n  %s: %s", strings.Join(origins[loss], ", "), loss)
	}
	return fmt.Errorf("options of Cilium protect what Waggle does not:%s\nremove these options, or start without their protection: --%s=%s", lines.String(),
		AcceptFlag, strings.Join(keys, ","))
}
