package ciliumendpointslices

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/spf13/pflag"
)

// Config configures the slices. Agents have the flag of Enable too.
type Config struct {
	Enable bool   `mapstructure:"enable-cilium-endpoint-slice"`
	Most   int    `mapstructure:"ces-max-ciliumendpoints-per-ces"`
	Limits string `mapstructure:"ces-rate-limits"`
}

// DefaultConfig contains the defaults of Cilium.
var DefaultConfig = Config{Most: 100, Limits: `[{"nodes":0,"limit":10,"burst":20}]`}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Bool("enable-cilium-endpoint-slice", c.Enable,
		"Write CiliumEndpointSlices in the cluster role, and read them instead of the CiliumEndpoints of other nodes once they are complete")
	flags.Int("ces-max-ciliumendpoints-per-ces", c.Most, "Maximum number of pods in one CiliumEndpointSlice, 1 to 1000")
	flags.String("ces-rate-limits", c.Limits,
		"Rate and burst of writes of CiliumEndpointSlices by minimum number of nodes, as JSON; the largest minimum that the cluster reaches applies")
}

// rateLimit is an entry of --ces-rate-limits.
type rateLimit struct {
	Nodes int     `json:"nodes"` // minimum number of nodes of the cluster for this entry
	Limit float64 `json:"limit"` // writes per second
	Burst int     `json:"burst"` // writes at once
}

const (
	mostPods = 1000
	// sliceSize is the maximum size of the entries of a slice, in bytes of JSON. mostSize is the maximum including the entries that a slice keeps until another
	// slice contains them: the API server rejects objects of more than 1.5 MiB. An entry usually has 0.4 kB and at most entrySize bytes.
	sliceSize = 1 << 20
	mostSize  = sliceSize + sliceSize/4
	entrySize = 10_000
)

// settings is the checked form of [Config].
type settings struct {
	enable bool
	most   int
	limits []rateLimit // sorted by nodes; the first entry has 0
}

func newSettings(c Config) (settings, error) {
	s := settings{enable: c.Enable, most: c.Most}
	if c.Most < 1 || c.Most > mostPods {
		return s, fmt.Errorf("--ces-max-ciliumendpoints-per-ces=%d: must be from 1 to %d", c.Most, mostPods)
	}
	decoder := json.NewDecoder(bytes.NewReader([]byte(c.Limits)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s.limits); err != nil {
		return s, fmt.Errorf("--ces-rate-limits=%q: %w", c.Limits, err)
	}
	slices.SortFunc(s.limits, func(a, b rateLimit) int { return cmp.Compare(a.Nodes, b.Nodes) })
	if len(s.limits) == 0 || s.limits[0].Nodes != 0 {
		return s, fmt.Errorf("--ces-rate-limits=%q: an entry with 0 nodes is needed", c.Limits)
	}
	for _, l := range s.limits {
		if l.Limit <= 0 || l.Burst < 1 {
			return s, fmt.Errorf("--ces-rate-limits=%q: limit and burst must be positive", c.Limits)
		}
	}
	return s, nil
}

// limit returns the rate limit for a number of nodes.
func (s settings) limit(nodes int) (found rateLimit) {
	for _, l := range s.limits {
		if l.Nodes <= nodes {
			found = l
		}
	}
	return found
}
