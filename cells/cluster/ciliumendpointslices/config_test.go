package ciliumendpointslices

import (
	"strings"
	"testing"
)

func TestNewSettings_Rejects(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"ces-max-ciliumendpoints-per-ces=0":    func(c *Config) { c.Most = 0 },
		"ces-max-ciliumendpoints-per-ces=1001": func(c *Config) { c.Most = 1001 },
		"invalid character":                    func(c *Config) { c.Limits = "x" },
		"unknown field":                        func(c *Config) { c.Limits = `[{"nodes":0,"limit":1,"burst":1,"qps":1}]` },
		"0 nodes":                              func(c *Config) { c.Limits = `[{"nodes":5,"limit":1,"burst":1}]` },
		"an entry":                             func(c *Config) { c.Limits = `[]` },
		"positive":                             func(c *Config) { c.Limits = `[{"nodes":0,"limit":0,"burst":1}]` },
	} {
		c := DefaultConfig
		change(&c)
		if _, err := newSettings(c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := DefaultConfig
	c.Limits = `[{"nodes":100,"limit":7,"burst":8},{"nodes":0,"limit":5,"burst":6},{"nodes":500,"limit":9,"burst":9}]`
	set, err := newSettings(c)
	if err != nil {
		t.Fatal(err)
	}
	for nodes, want := range map[int]float64{0: 5, 99: 5, 100: 7, 499: 7, 5000: 9} {
		if got := set.limit(nodes); got.Limit != want {
			t.Errorf("%d nodes: %v a second, want %v", nodes, got.Limit, want)
		}
	}
}
