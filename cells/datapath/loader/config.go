package loader

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/pflag"
)

// Config holds the timeouts of flows, the loopback addresses of services, and whether policy verdicts are reported. Flags have Cilium's names where Cilium has
// such flags. The values are constants of the programs from their load on.
type Config struct {
	TCPTimeout      time.Duration `mapstructure:"bpf-ct-timeout-regular-tcp"`
	TCPSynTimeout   time.Duration `mapstructure:"bpf-ct-timeout-regular-tcp-syn"`
	TCPCloseTimeout time.Duration `mapstructure:"bpf-ct-timeout-regular-tcp-fin"`
	AnyTimeout      time.Duration `mapstructure:"bpf-ct-timeout-regular-any"`
	Verdicts        bool          `mapstructure:"bpf-events-policy-verdict-enabled"`
	LoopbackIPv4    string        `mapstructure:"ipv4-service-loopback-address"`
	LoopbackIPv6    string        `mapstructure:"ipv6-service-loopback-address"`
}

// DefaultConfig holds Cilium's defaults except the IPv6 address. Cilium's is link-local, so a pod would first resolve it as a neighbor; this one is in the
// discard-only prefix 100::/64 (RFC 6666).
var DefaultConfig = Config{
	TCPTimeout: 8000 * time.Second, TCPSynTimeout: time.Minute, TCPCloseTimeout: 10 * time.Second, AnyTimeout: time.Minute,
	Verdicts: true, LoopbackIPv4: "169.254.42.1", LoopbackIPv6: "100::a9fe:2a01",
}

// Bounds of a timeout. The programs' clock ticks about once a second, and no idle flow needs an entry for a month.
const (
	leastTimeout = 2 * time.Second
	mostTimeout  = 30 * 24 * time.Hour
)

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.Duration("bpf-ct-timeout-regular-tcp", c.TCPTimeout, "Idle timeout of an established TCP flow")
	flags.Duration("bpf-ct-timeout-regular-tcp-syn", c.TCPSynTimeout, "Lifetime of a TCP flow without a reply")
	flags.Duration("bpf-ct-timeout-regular-tcp-fin", c.TCPCloseTimeout, "Lifetime of a TCP flow after both sides have closed it")
	flags.Duration("bpf-ct-timeout-regular-any", c.AnyTimeout, "Idle timeout of a flow of another protocol")
	flags.Bool("bpf-events-policy-verdict-enabled", c.Verdicts, "Report the policy verdict of each new flow")
	flags.String("ipv4-service-loopback-address", c.LoopbackIPv4, "IPv4 source address of a flow from a pod to a service whose selected backend is the same pod")
	flags.String("ipv6-service-loopback-address", c.LoopbackIPv6, "IPv6 source address of a flow from a pod to a service whose selected backend is the same pod")
}

// check returns an error if a value is invalid.
func (c Config) check() error {
	for flag, timeout := range map[string]time.Duration{"": c.TCPTimeout, "-syn": c.TCPSynTimeout, "-fin": c.TCPCloseTimeout} {
		if timeout < leastTimeout || timeout > mostTimeout {
			return fmt.Errorf("--bpf-ct-timeout-regular-tcp%s=%s: want %s to %s", flag, timeout, leastTimeout, mostTimeout)
		}
	}
	if c.AnyTimeout < leastTimeout || c.AnyTimeout > mostTimeout {
		return fmt.Errorf("--bpf-ct-timeout-regular-any=%s: want %s to %s", c.AnyTimeout, leastTimeout, mostTimeout)
	}
	for flag, addr := range map[string]string{"ipv4": c.LoopbackIPv4, "ipv6": c.LoopbackIPv6} {
		a, err := netip.ParseAddr(addr)
		if err != nil || a.Is4() != (flag == "ipv4") || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() {
			return fmt.Errorf("--%s-service-loopback-address=%s: want an unused unicast address of that family", flag, addr)
		}
	}
	return nil
}
