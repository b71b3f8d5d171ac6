package ciliumv2

import (
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/waggle-net/waggle/pkg/kubernetes/jsonscan"
)

// ReadEndpoint reads the fields of a CiliumEndpoint that other nodes need: its name, version and age, the node that wrote it, its identity, addresses and
// named ports. It saves the decoding of the other fields, which are the larger part of the many objects in a large cluster. Unexpected input makes r unable,
// such as a null, a duplicate member, or an object that node wrote.
func ReadEndpoint(r *jsonscan.Reader, node string) *CiliumEndpoint {
	o := &CiliumEndpoint{}
	var seen members
	r.Object(func(name []byte) {
		switch string(name) {
		case "metadata":
			seen.once(r, 0)
			readMetadata(r, &o.ObjectMeta, endpointMetadata(r, &o.ObjectMeta, node))
		case "status":
			seen.once(r, 1)
			readStatus(r, &o.Status)
		default:
			r.Skip()
		}
	})
	return o
}

// members is the set of members of an object that were read, one bit each.
type members uint8

func (m *members) once(r *jsonscan.Reader, bit int) {
	if *m&(1<<bit) != 0 {
		r.Fail()
	}
	*m |= 1 << bit
}

// readMetadata reads the metadata that all rows need. It calls other for each other member, and other must read or skip the value.
func readMetadata(r *jsonscan.Reader, meta *metav1.ObjectMeta, other func(name []byte)) {
	var seen members
	r.Object(func(name []byte) {
		switch string(name) {
		case "name":
			seen.once(r, 0)
			meta.Name = string(r.Text())
		case "namespace":
			seen.once(r, 1)
			meta.Namespace = string(r.Text())
		case "uid":
			seen.once(r, 2)
			meta.UID = types.UID(r.Text())
		case "resourceVersion":
			seen.once(r, 3)
			meta.ResourceVersion = string(r.Text())
		case "generation":
			seen.once(r, 4)
			meta.Generation = r.Int()
		case "creationTimestamp":
			seen.once(r, 5)
			made, err := time.Parse(time.RFC3339, string(r.Text()))
			if err != nil {
				r.Fail()
			}
			meta.CreationTimestamp = metav1.NewTime(made.Local())
		default:
			other(name)
		}
	})
}

// endpointMetadata returns a function for [readMetadata] that reads the label [NodeLabel] and skips all else.
func endpointMetadata(r *jsonscan.Reader, meta *metav1.ObjectMeta, node string) func(name []byte) {
	var seen members
	return func(name []byte) {
		if string(name) != "labels" {
			r.Skip()
			return
		}
		seen.once(r, 0)
		meta.Labels = readNodeLabel(r, node)
	}
}

// readNodeLabel reads the label [NodeLabel] and skips the others.
func readNodeLabel(r *jsonscan.Reader, node string) (labels map[string]string) {
	r.Object(func(name []byte) {
		if string(name) != NodeLabel {
			r.Skip()
			return
		}
		value := r.Text()
		if labels != nil || string(value) == node {
			r.Fail()
		}
		labels = map[string]string{NodeLabel: string(value)}
	})
	return labels
}

func readStatus(r *jsonscan.Reader, status *EndpointStatus) {
	var seen members
	r.Object(func(name []byte) {
		switch string(name) {
		case "identity":
			seen.once(r, 0)
			status.Identity = &EndpointIdentity{}
			readIdentity(r, status.Identity)
		case "networking":
			seen.once(r, 1)
			status.Networking = &EndpointNetworking{}
			readNetworking(r, status.Networking)
		case "named-ports":
			seen.once(r, 2)
			r.Array(func() { status.NamedPorts = append(status.NamedPorts, readPort(r)) })
		default:
			r.Skip()
		}
	})
}

func readIdentity(r *jsonscan.Reader, identity *EndpointIdentity) {
	var seen members
	r.Object(func(name []byte) {
		if string(name) != "id" {
			r.Skip()
			return
		}
		seen.once(r, 0)
		identity.ID = r.Int()
	})
}

func readNetworking(r *jsonscan.Reader, networking *EndpointNetworking) {
	var seen members
	r.Object(func(name []byte) {
		switch string(name) {
		case "addressing":
			seen.once(r, 0)
			r.Array(func() { networking.Addressing = append(networking.Addressing, readPair(r)) })
		case "node":
			seen.once(r, 1)
			networking.Node = string(r.Text())
		default:
			r.Skip()
		}
	})
}

func readPair(r *jsonscan.Reader) (pair AddressPair) {
	var seen members
	r.Object(func(name []byte) {
		switch string(name) {
		case "ipv4":
			seen.once(r, 0)
			pair.IPv4 = string(r.Text())
		case "ipv6":
			seen.once(r, 1)
			pair.IPv6 = string(r.Text())
		default:
			r.Skip()
		}
	})
	return pair
}

func readPort(r *jsonscan.Reader) (port NamedPort) {
	var seen members
	r.Object(func(name []byte) {
		switch string(name) {
		case "name":
			seen.once(r, 0)
			port.Name = string(r.Text())
		case "protocol":
			seen.once(r, 1)
			port.Protocol = string(r.Text())
		case "port":
			seen.once(r, 2)
			number := r.Int()
			if number < 0 || number > math.MaxUint16 {
				r.Fail()
			}
			port.Port = uint16(number)
		default:
			r.Skip()
		}
	})
	return port
}
