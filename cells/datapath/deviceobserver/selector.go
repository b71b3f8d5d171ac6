package deviceobserver

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/tables/devices"
)

// selector determines whether a link leads out of the node.
type selector struct {
	names  []pattern
	detect bool
}

// pattern is one entry of --devices.
type pattern struct {
	text    string // without "+" and "!"
	open    bool   // ended in "+"
	exclude bool   // began with "!"
}

// newSelector checks --devices. If all entries exclude, the other links are detected.
func newSelector(c Config) (selector, error) {
	s := selector{detect: c.ForceDeviceDetection}
	if name := c.DirectRoutingDevice; name != "" {
		if open, _ := strings.CutSuffix(name, "+"); !validPattern(pattern{text: open}) {
			return selector{}, fmt.Errorf("--direct-routing-device: %q is not an interface name: use eth0 or eth+", name)
		}
	}
	named := false
	for _, entry := range c.Devices {
		p := pattern{text: strings.TrimSpace(entry)}
		p.text, p.exclude = strings.CutPrefix(p.text, "!")
		p.text, p.open = strings.CutSuffix(p.text, "+")
		if !validPattern(p) {
			return selector{}, fmt.Errorf("--devices: %q is not an interface name: use eth0, eth+ or !eth1", entry)
		}
		named = named || !p.exclude
		s.names = append(s.names, p)
	}
	s.detect = s.detect || !named
	return s, nil
}

func validPattern(p pattern) bool {
	return (p.text != "" || p.open) && len(p.text) < unix.IFNAMSIZ && !strings.ContainsAny(p.text, "/+! \t\n")
}

func (p pattern) matches(name string) bool {
	return name == p.text || (p.open && strings.HasPrefix(name, p.text))
}

// match reports whether --devices names or excludes a link. An exclusion has precedence at any position.
func (s selector) match(name string) (named, excluded bool) {
	for _, p := range s.names {
		if p.matches(name) {
			named, excluded = named || !p.exclude, excluded || p.exclude
		}
	}
	return named, excluded
}

// evaluate reports whether a link leads out of the node, and why.
func (s selector) evaluate(d *devices.Device, addresses int, defaultRoute, globalRoute bool) (bool, string) {
	named, excluded := s.match(d.Name)
	switch {
	case addresses == 0:
		return false, "no addresses"
	case !d.Up:
		return false, "link is down"
	case excluded:
		return false, "excluded by --devices"
	case named:
		return true, "named by --devices"
	case !s.detect:
		return false, "not named by --devices"
	}
	if why := detect(d, defaultRoute, globalRoute); why != "" {
		return false, why
	}
	return true, "detected"
}

// virtual are name prefixes of links that lead to containers or are created by network software.
var virtual = []string{"waggle_", "cilium_", "lo", "lxc", "cni", "docker"}

// detect returns why a link does not lead out of the node; empty if it does.
func detect(d *devices.Device, defaultRoute, globalRoute bool) string {
	switch {
	case d.Flags&unix.IFF_LOOPBACK != 0:
		return "loopback"
	case d.Flags&unix.IFF_SLAVE != 0 || d.MasterIndex != 0:
		return "belongs to another link"
	case d.Type == "bridge" || d.Type == "openvswitch":
		return "a " + d.Type
	case d.Type == "veth" && !defaultRoute:
		return "a veth without a default route"
	}
	for _, prefix := range virtual {
		if strings.HasPrefix(d.Name, prefix) {
			return "name begins with " + prefix
		}
	}
	if !globalRoute {
		return "no global unicast route"
	}
	return ""
}
