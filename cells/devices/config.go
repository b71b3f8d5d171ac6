package devices

import "github.com/spf13/pflag"

// Config is what was typed.
type Config struct {
	// Devices are names of links that lead out of the node; "+" at the end stands for anything, "!" in front excludes.
	Devices []string `mapstructure:"devices"`
	// ForceDeviceDetection adds what is detected to what was named.
	ForceDeviceDetection bool `mapstructure:"force-device-detection"`
	// DirectRoutingDevice is the one towards other nodes, where that is not the one with the node's address.
	DirectRoutingDevice string `mapstructure:"direct-routing-device"`
}

// DefaultConfig detects the links.
var DefaultConfig = Config{}

// Flags registers the flags.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.StringSlice("devices", c.Devices,
		"Links that lead out of the node, e.g. eth0,bond+ (+ stands for anything, !eth1 excludes); default: detect them")
	flags.String("direct-routing-device", c.DirectRoutingDevice,
		"The one of them towards other nodes, e.g. eth1 or bond+; default: the one with the node's address, or the only one")
	flags.Bool("force-device-detection", c.ForceDeviceDetection, "Detect links also when --devices names some")
}
