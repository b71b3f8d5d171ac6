package nodehealthprober

import (
	"fmt"
	"math"
	"time"

	"github.com/spf13/pflag"

	"github.com/waggle-net/waggle/pkg/agentconfig"
)

// Config configures the probes.
type Config struct {
	Threshold int     `mapstructure:"health-check-icmp-failure-threshold"`
	Ratio     float64 `mapstructure:"connectivity-probe-frequency-ratio"`
	Rate      int     `mapstructure:"health-check-probe-rate"`
	Sample    int     `mapstructure:"health-check-sample"`
}

// DefaultConfig holds Cilium's defaults, and a sample that bounds the probes of an agent in a large cluster: up to 104 nodes, all nodes are probed. At 5,000
// nodes each node with flows is probed every 10 minutes, and each of the others every 8 hours.
var DefaultConfig = Config{Threshold: 3, Ratio: 0.5, Rate: 10, Sample: 100}

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Int("health-check-icmp-failure-threshold", c.Threshold, "Number of ICMP echo requests without a reply after which a probe fails, 1 to 20")
	flags.Float64("connectivity-probe-frequency-ratio", c.Ratio,
		"Weight of the variable part of the probe interval, 0 to 1: the interval is (10s + 100s * ratio) * ln(1 + nodes)")
	flags.Int("health-check-probe-rate", c.Rate, "Maximum number of nodes probed per second, 1 to 1000")
	flags.Int("health-check-sample", c.Sample, "Number of nodes without flows of this node's pods that are probed per interval, besides ln(1 + nodes), 1 to 10000; 0 probes all")
}

const (
	maxThreshold = 20
	maxRate      = 1000
	maxSample    = 10000
)

// options is the validated form of [Config].
type options struct {
	port      uint16
	threshold int           // ICMP requests of one probe
	base      time.Duration // 10 s to 110 s
	rate      int           // maximum number of nodes that are probed per second
	sample    int           // nodes without flows that are probed per interval; 0 for all
}

func newOptions(c Config, a agentconfig.Agent) (options, error) {
	switch {
	case c.Threshold < 1 || c.Threshold > maxThreshold:
		return options{}, fmt.Errorf("--health-check-icmp-failure-threshold=%d: use 1 to %d", c.Threshold, maxThreshold)
	case !(c.Ratio >= 0 && c.Ratio <= 1): // also rejects NaN
		return options{}, fmt.Errorf("--connectivity-probe-frequency-ratio=%v: use 0 to 1", c.Ratio)
	case c.Rate < 1 || c.Rate > maxRate:
		return options{}, fmt.Errorf("--health-check-probe-rate=%d: use 1 to %d", c.Rate, maxRate)
	}
	if c.Sample < 0 || c.Sample > maxSample {
		return options{}, fmt.Errorf("--health-check-sample=%d: use 0 to %d", c.Sample, maxSample)
	}
	base := 10*time.Second + time.Duration(c.Ratio*float64(100*time.Second))
	return options{a.HealthPort, c.Threshold, base, c.Rate, c.Sample}, nil
}

// interval returns the time between two probes of a node in a cluster with a number of nodes. It grows with the logarithm of the number, until the rate is the
// limit. A sixth of the rate is reserved for nodes that are probed more often.
func (o options) interval(nodes int) time.Duration {
	grown := time.Duration(float64(o.base) * math.Log1p(float64(nodes)))
	return max(grown, o.spread(nodes)*6/5).Round(time.Second)
}

// spread returns the minimum time in which a number of nodes can be probed.
func (o options) spread(nodes int) time.Duration {
	return time.Duration(nodes) * time.Second / time.Duration(o.rate)
}

// sampled returns the mean time between two probes of a node without flows of pods of this node. It is the interval, unless only a sample of these nodes is
// probed per interval.
func (o options) sampled(nodes int) time.Duration {
	interval, share := o.interval(nodes), float64(o.sample)+math.Log1p(float64(nodes))
	if o.sample == 0 || share >= float64(nodes) {
		return interval
	}
	return time.Duration(float64(interval) * float64(nodes) / share)
}

// rhythm describes the times between two probes of a node, for operators.
func (o options) rhythm(nodes int) string {
	interval, mean := o.interval(nodes), o.sampled(nodes)
	if mean == interval {
		return fmt.Sprintf("%d nodes, each probed every %v", nodes, interval)
	}
	return fmt.Sprintf("%d nodes, each with flows probed every %v, and each of the others every %v on average", nodes, interval, mean.Round(time.Minute))
}

// lean reports whether probes of a number of nodes need more than half of the rate. If so, each node is probed by HTTP half as often as by ICMP.
func (o options) lean(nodes int) bool {
	return o.sampled(nodes) == o.interval(nodes) && 2*o.spread(nodes) > o.interval(nodes)
}
