package deviceobserver

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

func (c Config) Flags(flags *pflag.FlagSet) {
	flags.StringSlice("devices", c.Devices,
		"Devices to other nodes and external networks, e.g. eth0,bond+ (+ matches any suffix, !eth1 excludes); default: detected")
	flags.String("direct-routing-device", c.DirectRoutingDevice,
		"Device of --devices to other nodes, e.g. eth1 or bond+; default: the device with the node's address, or the only one")
	flags.Bool("force-device-detection", c.ForceDeviceDetection, "Detect devices in addition to the devices of --devices")
}
