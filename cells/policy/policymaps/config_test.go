package policymaps

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/celltest"
	"github.com/waggle-net/waggle/pkg/hive"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// typed returns the configuration and the options that a hive makes of command-line arguments.
func typed(t *testing.T, args ...string) (c Config, o policy.Options, err error) {
	t.Helper()
	h := hive.New(celltest.Infrastructure(), cell.Config(DefaultConfig), cell.Provide(newOptions),
		cell.Invoke(func(config Config, options policy.Options) { c, o = config, options }))
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	h.RegisterFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return c, o, h.Populate(slog.New(slog.DiscardHandler))
}

func TestNewOptions_ValidFlags(t *testing.T) {
	t.Parallel()
	usual := policy.Options{Mode: policy.Default, AllowLocalhost: true, L7Rules: policy.DenyL7}
	with := func(change func(*policy.Options)) policy.Options {
		o := usual
		change(&o)
		return o
	}
	nodes := with(func(o *policy.Options) { o.CIDRMatchesNodes = true })
	for name, tc := range map[string]struct {
		args []string
		want policy.Options
	}{
		"nothing":                 {nil, usual},
		"default":                 {[]string{"--enable-policy=default"}, usual},
		"ports of requests":       {[]string{"--l7-rules=allow-port"}, with(func(o *policy.Options) { o.L7Rules = policy.AllowL7Ports })},
		"always":                  {[]string{"--enable-policy=always"}, with(func(o *policy.Options) { o.Mode = policy.Always })},
		"never":                   {[]string{"--enable-policy=never"}, with(func(o *policy.Options) { o.Mode = policy.Never })},
		"localhost auto":          {[]string{"--allow-localhost=auto"}, usual},
		"localhost always":        {[]string{"--allow-localhost=always"}, usual},
		"localhost by policy":     {[]string{"--allow-localhost=policy"}, with(func(o *policy.Options) { o.AllowLocalhost = false })},
		"CIDRs match nodes":       {[]string{"--policy-cidr-match-mode=nodes"}, nodes},
		"CIDRs match nodes twice": {[]string{"--policy-cidr-match-mode=nodes,nodes", "--policy-cidr-match-mode=nodes"}, nodes},
		"CIDRs match no nodes":    {[]string{"--policy-cidr-match-mode="}, usual},
	} {
		if _, got, err := typed(t, tc.args...); err != nil || got != tc.want {
			t.Errorf("%s: %+v, want %+v (%v)", name, got, tc.want, err)
		}
	}
}

// Values in another letter case or of other versions are invalid: a policy that is enforced differently from the flags is worse than an agent that does not
// start.
func TestNewOptions_RejectsUnknownValues(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{
		"--enable-policy=":                       `--enable-policy="": use default, always or never`,
		"--enable-policy=Always":                 `--enable-policy="Always": use`,
		"--enable-policy=true":                   `--enable-policy="true": use`,
		"--policy-cidrs-per-namespace=-1":        `--policy-cidrs-per-namespace=-1: use a positive number, or 0`,
		"--policy-entries-per-namespace=-2":      `--policy-entries-per-namespace=-2: use a positive number, 0`,
		"--l7-rules=allow":                       `--l7-rules="allow": use deny or allow-port`,
		"--allow-localhost=":                     `--allow-localhost="": use auto, always or policy`,
		"--allow-localhost=never":                `--allow-localhost="never": use`,
		"--policy-cidr-match-mode=node":          `--policy-cidr-match-mode="node": use nodes, or nothing`,
		"--policy-cidr-match-mode=nodes,remote":  `--policy-cidr-match-mode="remote": use`,
		"--policy-cidr-match-mode=nodes, nodes ": `--policy-cidr-match-mode=" nodes ": use`,
	} {
		if _, o, err := typed(t, arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want an error with %s", arg, o, err, want)
		}
	}
}

// The agent does not wait for a disabled kind of policies, because its resource may not exist.
func TestConfig_DisabledKinds(t *testing.T) {
	t.Parallel()
	db := statedb.New()
	namespaces, err1 := k8s.NewNamespaceTable(db)
	kubernetes, err2 := k8s.NewNetworkPolicyTable(db)
	ciliums, err3 := cilium.NewPolicyTable(db)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"none":       {nil, []string{namespaces.Name(), kubernetes.Name(), ciliums.Name()}},
		"Kubernetes": {[]string{"--enable-k8s-networkpolicy=false"}, []string{namespaces.Name(), ciliums.Name()}},
		"Cilium":     {[]string{"--enable-cilium-network-policy=false"}, []string{namespaces.Name(), kubernetes.Name()}},
		"both":       {[]string{"--enable-k8s-networkpolicy=false", "--enable-cilium-network-policy=false"}, []string{namespaces.Name()}},
	} {
		c, _, err := typed(t, tc.args...)
		in := &inputs{params: params{Config: c, Namespaces: namespaces, KubernetesPolicies: kubernetes, CiliumPolicies: ciliums}}
		if got := in.needed(); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q is awaited, want %q (%v)", name, got, tc.want, err)
		}
	}
}
