package config

import (
	"strings"
	"testing"
)

// protected loads options and returns the error of CheckProtection and the warnings.
func protected(t *testing.T, files map[string]string, environ, args, accepted []string) (refusal string, warnings []string) {
	t.Helper()
	flags := newFlags()
	must(t, flags.Parse(append(args, "--config-dir="+directory(t, files))))
	eff, err := Load(flags, environ)
	must(t, err)
	if err := eff.CheckProtection(accepted); err != nil {
		refusal = err.Error()
	}
	return refusal, eff.Warnings
}

func TestCheckProtection_RejectsUnsupportedProtections(t *testing.T) {
	t.Parallel()
	for _, p := range protections {
		for key := range strings.FieldsSeq(p.keys) {
			refusal, _ := protected(t, map[string]string{key: "true"}, nil, nil, nil)
			for _, want := range []string{"/" + key + ": " + p.lost + "; " + p.remedy, "--accept-unprotected=" + key} {
				if !strings.Contains(refusal, want) {
					t.Errorf("%s=true: %q does not say %q", key, refusal, want)
				}
			}
			for _, value := range []string{"", "false"} {
				if refusal, _ := protected(t, map[string]string{key: value}, nil, nil, nil); refusal != "" && (value == "" || p.on("false") == false) {
					t.Errorf("%s=%q: %s", key, value, refusal)
				}
			}
			refusal, warnings := protected(t, map[string]string{key: "true"}, nil, nil, []string{key})
			if refusal != "" || len(warnings) != 1 || !strings.Contains(warnings[0], "/"+key+" ("+p.lost+")") {
				t.Errorf("%s is accepted: %q, warnings %q", key, refusal, warnings)
			}
		}
	}
}

// Cilium's default ConfigMap has mesh-auth-enabled. Rules with authentication allow nothing in Waggle, so no protection is missing.
func TestCheckProtection_OfSources(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files                   map[string]string
		environ, args, accepted []string
		want                    []string // parts of the error; nil means no error
	}{
		"all at once": {map[string]string{"enable-host-firewall": "true", "static-cnp-path": "/policies"}, []string{"WAGGLE_ENCRYPT_NODE=true"}, []string{"--enable-wireguard"}, nil,
			[]string{"\n  --enable-wireguard, WAGGLE_ENCRYPT_NODE: packets between nodes are not encrypted; encrypt the network", "/enable-host-firewall: policies", "/static-cnp-path: policies",
				"\nremove these options, or start without their protection: --accept-unprotected="}},
		"a part is accepted": {map[string]string{"enable-host-firewall": "true", "enable-ipsec": "true"}, nil, nil, []string{"enable-ipsec"},
			[]string{"--accept-unprotected=enable-host-firewall"}},
		"a flag turns it off":           {map[string]string{"enable-wireguard": "true"}, nil, []string{"--enable-wireguard=false"}, nil, nil},
		"a flag turns it on":            {map[string]string{"enable-wireguard": "false"}, nil, []string{"--enable-wireguard"}, nil, []string{"--enable-wireguard"}},
		"an empty variable is no value": {map[string]string{"enable-wireguard": "true"}, []string{"WAGGLE_ENABLE_WIREGUARD="}, nil, nil, []string{"/enable-wireguard"}},
		"no truth value":                {map[string]string{"enable-wireguard": "on"}, nil, nil, nil, []string{"/enable-wireguard"}},
		"a lockdown": {map[string]string{"enable-endpoint-lockdown-on-policy-overflow": "true"}, nil, nil, nil,
			[]string{"/enable-endpoint-lockdown-on-policy-overflow: endpoints whose policy does not fit into the maps keep the policy that they had", "bpf-policy-map-max"}},
		"no lockdown, as in Cilium's ConfigMap": {map[string]string{"enable-endpoint-lockdown-on-policy-overflow": "false"}, nil, nil, nil, nil},
		"no device of a prefilter":              {map[string]string{"prefilter-device": "undefined"}, nil, nil, nil, nil},
		"other options":                         {map[string]string{"mesh-auth-enabled": "true", "enable-source-ip-verification": "true", "enable-l7-proxy": "true"}, nil, nil, nil, nil},
		"accepted, but not set":                 {nil, nil, nil, []string{"enable-wireguard"}, nil},
		"accepted, and protects nothing": {nil, nil, nil, []string{"enable-wiregard"},
			[]string{"--accept-unprotected=enable-wiregard: want options of Cilium that protect what Waggle does not: bpf-lb-source-range-all-types, "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refusal, _ := protected(t, c.files, c.environ, c.args, c.accepted)
			if (refusal == "") != (len(c.want) == 0) {
				t.Errorf("the error is %q", refusal)
			}
			for _, want := range c.want {
				if !strings.Contains(refusal, want) {
					t.Errorf("%q does not say %q", refusal, want)
				}
			}
		})
	}
}

// protective would never be called for a key that is not an option of Cilium.
func TestProtections_AreOptionsOfCilium(t *testing.T) {
	t.Parallel()
	for _, p := range protections {
		for key := range strings.FieldsSeq(p.keys) {
			if !foreign(key) {
				t.Errorf("%s is not in the list of foreign keys", key)
			}
		}
	}
}
