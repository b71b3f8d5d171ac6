package ipam

import (
	"strings"
	"testing"
	"time"

	"github.com/waggle-net/waggle/pkg/ipalloc"
)

func TestNewSettings(t *testing.T) {
	t.Parallel()
	got, err := newSettings(DefaultConfig)
	if want := (settings{"default", ipalloc.Random, 30 * time.Second}); err != nil || got != want {
		t.Errorf("the defaults give %+v (%v), want %+v", got, err, want)
	}
	for flag, change := range map[string]func(*Config){
		"--ipam=":                    func(c *Config) { c.Mode = "eni" },
		"--ipam-default-ip-pool":     func(c *Config) { c.DefaultPool = "a/b" },
		"--ipam-allocation-strategy": func(c *Config) { c.Strategy = "round-robin" },
		"--ipam-release-quarantine":  func(c *Config) { c.Quarantine = -time.Second },
	} {
		c := DefaultConfig
		change(&c)
		if _, err := newSettings(c); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("error of a bad %s is %v", flag, err)
		}
	}
	c := DefaultConfig
	c.Mode = "kubernetes"
	if _, err := newSettings(c); err != nil {
		t.Error(err)
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
