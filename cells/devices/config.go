package devices

import "github.com/spf13/pflag"

// Config configures the selection of links.
type Config struct {
	// Devices are names of links that lead out of the node; "+" at the end matches any suffix, "!" in front excludes.
	Devices []string `mapstructure:"devices"`
	// ForceDeviceDetection adds detected links to the named ones.
	ForceDeviceDetection bool `mapstructure:"force-device-detection"`
	// DirectRoutingDevice is the link towards other nodes, if that is not the one with the node's address.
	DirectRoutingDevice string `mapstructure:"direct-routing-device"`
}

// DefaultConfig detects the links.
var DefaultConfig = Config{}

// Flags registers the flags of the cell.
func (c Config) Flags(flags *pflag.FlagSet) {
	flags.StringSlice("devices", c.Devices,
		"Links that lead out of the node, e.g. eth0,bond+ (+ stands for anything, !eth1 excludes); default: detect them")
	flags.String("direct-routing-device", c.DirectRoutingDevice,
		"The one of them towards other nodes, e.g. eth1 or bond+; default: the one with the node's address, or the only one")
	flags.Bool("force-device-detection", c.ForceDeviceDetection, "Detect links also when --devices names some")
}
