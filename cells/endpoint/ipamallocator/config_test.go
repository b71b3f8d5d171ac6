package ipamallocator

import (
	"strings"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/ipalloc"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

func TestNewSettings(t *testing.T) {
	t.Parallel()
	got, err := newSettings(DefaultConfig, agentconfig.Agent{}, nil)
	if want := (settings{"default", ipalloc.Random, 30 * time.Second, false, false}); err != nil || got != want {
		t.Errorf("the defaults give %+v (%v), want %+v", got, err, want)
	}
	for flag, change := range map[string]func(*Config){
		"--ipam-default-ip-pool":     func(c *Config) { c.DefaultPool = "a/b" },
		"--ipam-allocation-strategy": func(c *Config) { c.Strategy = "round-robin" },
		"--ipam-release-quarantine":  func(c *Config) { c.Quarantine = -time.Second },
	} {
		c := DefaultConfig
		change(&c)
		if _, err := newSettings(c, agentconfig.Agent{}, nil); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("error of a bad %s is %v", flag, err)
		}
	}
}

// TestNewSettings_HealthAddress checks that a health address needs the flags and an API server.
func TestNewSettings_HealthAddress(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ kubernetes, endpoint, want bool }{{true, true, true}, {false, true, false}, {true, false, false}} {
		var client *kubeapi.Client
		if test.kubernetes {
			client = &kubeapi.Client{}
		}
		if s, err := newSettings(DefaultConfig, agentconfig.Agent{EndpointHealthChecking: test.endpoint}, client); err != nil || s.health != test.want {
			t.Errorf("%+v gives %v, %v", test, s.health, err)
		}
	}
}

func TestQuote_MakesOwnersSafe(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"default/pod": "default/pod", "": `""`, "a\x1b[2J": `"a\x1b[2J"`,
		strings.Repeat("a", 10_000): strings.Repeat("a", 80) + "...",
	} {
		if got := quote(in); got != want {
			t.Errorf("quote(%.20q) = %s, want %s", in, got, want)
		}
	}
}
