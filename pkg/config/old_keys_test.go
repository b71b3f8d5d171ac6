package config

import (
	"slices"
	"strings"
	"testing"
)

func TestLoad_OldKeyTunnel(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files         map[string]string
		environ, args []string
		mode, origin  string // origin of the directory as "/KEY"
		want          string // part of the error
	}{
		"disabled":                     {map[string]string{"tunnel": "disabled"}, nil, nil, "native", "/tunnel", ""},
		"vxlan":                        {map[string]string{"tunnel": "vxlan"}, nil, nil, "tunnel", "/tunnel", ""},
		"nothing":                      {map[string]string{"tunnel": ""}, nil, nil, "tunnel", "", ""},
		"geneve":                       {map[string]string{"tunnel": "geneve"}, nil, nil, "", "", "/tunnel=geneve: is not supported: use vxlan on all nodes"},
		"something else":               {map[string]string{"tunnel": "ipip"}, nil, nil, "", "", "/tunnel=ipip: want disabled or vxlan"},
		"a flag":                       {nil, nil, []string{"--tunnel=disabled"}, "native", "--tunnel", ""},
		"a flag of the new name first": {map[string]string{"tunnel": "disabled"}, nil, []string{"--routing-mode=tunnel"}, "tunnel", "--routing-mode", ""},
		"a variable first":             {map[string]string{"routing-mode": "tunnel"}, []string{"WAGGLE_TUNNEL=disabled"}, nil, "native", "WAGGLE_TUNNEL", ""},
		"both names agree":             {map[string]string{"tunnel": "disabled", "routing-mode": "native"}, nil, nil, "native", "/routing-mode", ""},
		"both names contradict": {map[string]string{"tunnel": "disabled", "routing-mode": "tunnel"}, nil, nil, "", "",
			"/tunnel=disabled means routing-mode=native and contradicts "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := newFlags()
			must(t, flags.Parse(append(c.args, "--config-dir="+directory(t, c.files))))
			eff, err := Load(flags, c.environ)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
				return
			}
			must(t, err)
			i := slices.IndexFunc(eff.Options, func(o Option) bool { return o.Key == "routing-mode" })
			if o := eff.Options[i]; o.Value != c.mode || !strings.HasSuffix(o.Origin, c.origin) || (o.Origin == "") != (c.origin == "") {
				t.Errorf("routing-mode is %+v, want %s from %q", o, c.mode, c.origin)
			}
		})
	}
}
