package endpoint

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// RefKind is the type of identifier by which an endpoint is looked up.
type RefKind int

// Kinds of a [Ref], with the field that is set.
const (
	RefID         RefKind = iota // ID
	RefAttachment                // Name: "<container id>:<interface>"
	RefContainer                 // Name: container id; any of its attachments
	RefPod                       // Name: "namespace/pod"; the newest sandbox
	RefAddress                   // Addr
)

// Ref is a parsed "[prefix:]id".
type Ref struct {
	Kind RefKind
	ID   uint16
	Name string
	Addr netip.Addr
}

// maxRef limits the length of an id: two names of 253 characters, or a container id and an interface, and a prefix.
const maxRef = 600

// ParseRef parses "[prefix:]id"; without a prefix the id is a local number. Errors wrap [ErrInvalid] or [ErrUnsupported].
func ParseRef(s string) (Ref, error) {
	ref, err := parseRef(s)
	if err != nil {
		return Ref{}, fmt.Errorf("endpoint id %s: %w", clip(s), err)
	}
	return ref, nil
}

func parseRef(s string) (Ref, error) {
	if len(s) > maxRef {
		return Ref{}, fmt.Errorf("%w: longer than %d characters", ErrInvalid, maxRef)
	}
	prefix, id, found := strings.Cut(s, ":")
	if !found {
		prefix, id = "cilium-local", s
	}
	switch prefix {
	case "cilium-local":
		return parseLocal(id)
	case "cni-attachment-id":
		return parseAttachment(id)
	case "container-id":
		return Ref{Kind: RefContainer, Name: id}, invalid(checkContainerID(id))
	case "pod-name", "cep-name":
		return parsePod(id)
	case "ipv4", "ipv6":
		return parseAddress(id, prefix)
	case "cilium-global":
		return Ref{}, fmt.Errorf("%w: cilium-global names endpoints of other nodes", ErrUnsupported)
	}
	return Ref{}, fmt.Errorf("%w: unknown prefix; use one of cilium-local, cni-attachment-id, container-id, "+
		"pod-name, cep-name, ipv4, ipv6", ErrInvalid)
}

func parseLocal(id string) (Ref, error) {
	n, err := strconv.ParseUint(id, 10, 16)
	if err != nil {
		return Ref{}, fmt.Errorf("%w: want a number from 0 to 65535, or a prefix as in pod-name:namespace/pod", ErrInvalid)
	}
	return Ref{Kind: RefID, ID: uint16(n)}, nil
}

func parseAttachment(id string) (Ref, error) {
	container, ifName, both := strings.Cut(id, ":")
	if err := checkContainerID(container); err != nil {
		return Ref{}, invalid(err)
	}
	if !both {
		return Ref{Kind: RefContainer, Name: container}, nil
	}
	return Ref{Kind: RefAttachment, Name: id}, invalid(checkIfName(ifName))
}

// parsePod parses "namespace/pod", and "namespace:pod" as in old documents of the API.
func parsePod(id string) (Ref, error) {
	namespace, name, found := strings.Cut(id, "/")
	if !found {
		namespace, name, found = strings.Cut(id, ":")
	}
	if !found {
		return Ref{}, fmt.Errorf("%w: want namespace/pod", ErrInvalid)
	}
	err := errors.Join(checkK8sName("namespace", namespace), checkK8sName("pod name", name))
	return Ref{Kind: RefPod, Name: namespace + "/" + name}, invalid(err)
}

func parseAddress(id, family string) (Ref, error) {
	a, err := netip.ParseAddr(id)
	if err != nil {
		return Ref{}, fmt.Errorf("%w: want an IP address", ErrInvalid)
	}
	if a.Is4In6() || a.Zone() != "" || a.Is4() != (family == "ipv4") {
		return Ref{}, fmt.Errorf("%w: is not a plain address of family %s", ErrInvalid, family)
	}
	return Ref{Kind: RefAddress, Addr: a}, nil
}

// invalid marks an error as caused by the caller; nil stays nil.
func invalid(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrInvalid, err)
}
