package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

const maxICMPType = 255

// icmps parses one item of the field icmps: message types by family.
func (r *ciliumRule) icmps(ports *Ports, path string, item json.RawMessage) error {
	var o struct {
		Fields json.RawMessage `json:"fields"`
	}
	if err := decode(item, &o); err != nil {
		return err
	}
	r.list(path+".fields", o.Fields, func(_ string, item json.RawMessage) error {
		port, err := icmpPort(item)
		if err == nil {
			ports.List = append(ports.List, port)
		}
		return err
	})
	return nil
}

func icmpPort(item json.RawMessage) (Port, error) {
	var o struct {
		Family string          `json:"family"`
		Type   json.RawMessage `json:"type"`
	}
	if err := decode(item, &o); err != nil {
		return Port{}, err
	}
	p, names := Port{Protocol: ProtocolICMP}, icmpTypes
	switch o.Family {
	case "", "IPv4":
	case "IPv6":
		p.Protocol, names = ProtocolICMPv6, icmpv6Types
	default:
		return Port{}, errors.New("the family " + quote(o.Family) + " is neither IPv4 nor IPv6")
	}
	if bytes.HasPrefix(o.Type, []byte(`"`)) {
		var name string
		if err := decode(o.Type, &name); err != nil {
			return Port{}, err
		}
		number, found := names[name]
		if !found {
			return icmpNumber(p, name)
		}
		p.Low, p.High = number, number
		return p, nil
	}
	return icmpNumber(p, string(o.Type))
}

// icmpNumber parses a type that is written as a number.
func icmpNumber(p Port, text string) (Port, error) {
	var number uint16
	if err := decode(json.RawMessage(text), &number); err != nil || number > maxICMPType {
		return Port{}, fmt.Errorf("the type %s is neither a number up to %d nor a name of the family", quote(text), maxICMPType)
	}
	p.Low, p.High = number, number
	return p, nil
}

// Names of ICMP types, as in Cilium.
var (
	icmpTypes = map[string]uint16{
		"EchoReply": 0, "DestinationUnreachable": 3, "Redirect": 5, "Echo": 8, "EchoRequest": 8, "RouterAdvertisement": 9,
		"RouterSelection": 10, "TimeExceeded": 11, "ParameterProblem": 12, "Timestamp": 13, "TimestampReply": 14, "Photuris": 40,
		"ExtendedEchoRequest": 42, "ExtendedEchoReply": 43,
	}
	icmpv6Types = map[string]uint16{
		"DestinationUnreachable": 1, "PacketTooBig": 2, "TimeExceeded": 3, "ParameterProblem": 4, "EchoRequest": 128, "EchoReply": 129,
		"MulticastListenerQuery": 130, "MulticastListenerReport": 131, "MulticastListenerDone": 132, "RouterSolicitation": 133,
		"RouterAdvertisement": 134, "NeighborSolicitation": 135, "NeighborAdvertisement": 136, "RedirectMessage": 137,
		"RouterRenumbering": 138, "ICMPNodeInformationQuery": 139, "ICMPNodeInformationResponse": 140,
		"InverseNeighborDiscoverySolicitation": 141, "InverseNeighborDiscoveryAdvertisement": 142,
		"HomeAgentAddressDiscoveryRequest": 144, "HomeAgentAddressDiscoveryReply": 145, "MobilePrefixSolicitation": 146,
		"MobilePrefixAdvertisement": 147, "DuplicateAddressRequestCodeSuffix": 157, "DuplicateAddressConfirmationCodeSuffix": 158,
		"ExtendedEchoRequest": 160, "ExtendedEchoReply": 161,
	}
)
