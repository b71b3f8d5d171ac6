package rtnl

import (
	"context"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Settings listens for changes of the settings of the network namespace that the kernel announces, which are forwarding and the reverse path filter, and for
// new and renamed links, of which all settings may have the kernel's values.
type Settings struct {
	listener *Listener
	handle   *Handle
}

// Setting is a changed setting.
type Setting struct {
	Name  string // path below /proc/sys; the directory of a link when All is set
	Value int    // 0 when All is set
	All   bool
}

// Attributes of the messages and special indexes (linux/netconf.h).
const (
	netconfIfindex    = 1
	netconfForwarding = 2
	netconfRPFilter   = 3
	netconfAll        = -1
	netconfDefault    = -2
)

// OpenSettings starts to listen in the network namespace of the calling thread.
func OpenSettings() (*Settings, error) {
	listener, err := Listen("settings", unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		return nil, err
	}
	handle, err := Open()
	if err != nil {
		listener.Close()
		return nil, err
	}
	return &Settings{listener, handle}, nil
}

// Close closes the sockets.
func (s *Settings) Close() {
	s.listener.Close()
	s.handle.Close()
}

// Next is [Listener.Next], with parsed settings.
func (s *Settings) Next(ctx context.Context) (all []Setting, err error) {
	for len(all) == 0 {
		msgs, err := s.listener.Next(ctx)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			if c, ok := parseNetconf(m.Data); ok && m.Header.Type == unix.RTM_NEWNETCONF {
				all = append(all, s.named(c)...)
			}
		}
	}
	return all, nil
}

// netconf holds the content of one message.
type netconf struct {
	family  uint8
	ifindex int32
	setting uint16 // netconfForwarding or netconfRPFilter; 0 for all settings of a link
	value   int32
}

// parseNetconf parses a message about one setting, or about a new link, which lists several settings.
func parseNetconf(m []byte) (c netconf, ok bool) {
	const head = 4 // the family, and the padding before the attributes
	if len(m) < head {
		return netconf{}, false
	}
	c.family = m[0]
	settings := 0
	for b := m[head:]; len(b) >= unix.SizeofRtAttr; {
		length := int(nl.NativeEndian().Uint16(b))
		if length < unix.SizeofRtAttr || length > len(b) {
			return netconf{}, false
		}
		if length >= unix.SizeofRtAttr+4 {
			value := int32(nl.NativeEndian().Uint32(b[unix.SizeofRtAttr:]))
			switch kind := nl.NativeEndian().Uint16(b[2:]); kind {
			case netconfIfindex:
				c.ifindex = value
			default:
				settings++
				c.setting, c.value = kind, value
			}
		}
		b = b[min((length+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
	}
	if settings > 1 {
		c.setting, c.value = 0, 0
		return c, true
	}
	return c, c.setting == netconfForwarding || c.setting == netconfRPFilter
}

// named returns the changed settings with their names; a deleted link has none.
func (s *Settings) named(c netconf) (all []Setting) {
	var device string
	switch c.ifindex {
	case netconfAll:
		device = "all"
	case netconfDefault:
		device = "default"
	default:
		link, err := s.handle.LinkByIndex(int(c.ifindex))
		if err != nil {
			return nil
		}
		device = link.Attrs().Name
	}
	family, value := "ipv4", int(c.value)
	if c.family == netlink.FAMILY_V6 {
		family = "ipv6"
	}
	dir := "net/" + family + "/conf/" + device
	switch c.setting {
	case 0:
		return []Setting{{Name: dir, All: true}}
	case netconfRPFilter:
		return []Setting{{Name: dir + "/rp_filter", Value: value}}
	}
	all = append(all, Setting{Name: dir + "/forwarding", Value: value})
	if c.ifindex == netconfAll && family == "ipv4" {
		all = append(all, Setting{Name: "net/ipv4/ip_forward", Value: value})
	}
	return all
}

// String formats the value as /proc shows it.
func (s Setting) String() string { return strconv.Itoa(s.Value) }
