package agentconfig

import (
	"fmt"
	"math"

	"github.com/spf13/pflag"
)

// Metrics of routes to pods of other nodes, with a tunnel and --route-metric=0.
const (
	directMetric = 1024 // past the tunnel
	tunnelMetric = 2048 // into the tunnel
)

// maxRouteMetric is the largest value of --route-metric. The agent also uses the next two metrics, and all must fit into 31 bits.
const maxRouteMetric = math.MaxInt32 - 2

func (f Flags) metricFlags(flags *pflag.FlagSet) {
	flags.Int("route-metric", f.RouteMetric, "Metric N of routes to this node's pods through waggle_host; past the tunnel N+1, into it N+2; "+
		"0: 0 (IPv6: 1024), 1024 and 2048")
}

// checkRouteMetric checks the range of --route-metric.
func (f Flags) checkRouteMetric() error {
	if f.RouteMetric < 0 || f.RouteMetric > maxRouteMetric {
		return fmt.Errorf("--route-metric=%d: use 1 to %d, or 0 for the metrics of the agent", f.RouteMetric, maxRouteMetric)
	}
	return nil
}

// TunnelMetrics returns the metrics of routes to pods of other nodes, past the tunnel and into it. The kernel prefers lower metrics, and the order of the agent's
// routes to one destination is the same for each --route-metric: to pods of this node, past the tunnel, into the tunnel. The three metrics differ, because the
// kernel identifies a route by its destination and metric. The metrics must not be 0: the kernel deletes a route of any metric when a request has metric 0.
func (a Agent) TunnelMetrics() (past, into int) {
	if a.RouteMetric == 0 {
		return directMetric, tunnelMetric
	}
	return a.RouteMetric + 1, a.RouteMetric + 2
}
