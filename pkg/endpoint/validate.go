package endpoint

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/labels"
)

// Limits of requests. They keep a row, its file and each error message small.
const (
	maxContainerID = 256
	maxIfName      = 15 // IFNAMSIZ less the terminator
	maxPath        = 4095
	maxK8sName     = 253
	maxUID         = 128
)

// Validate checks each field on its own; only the manager can detect conflicts with other endpoints. The error contains all faults, each with the name of its
// field, and wraps [ErrInvalid].
func (r *Request) Validate() error {
	_, labelsErr := labels.Parse(r.Labels)
	return invalid(errors.Join(
		checkContainerID(r.ContainerID),
		field("container-interface-name", checkIfName(r.IfName)),
		field("interface-name", checkIfName(r.HostIfName)),
		r.checkHostIfIndex(),
		field("netns path", checkPath(r.NetnsPath)),
		r.checkMACs(),
		r.checkAddresses(),
		checkPool("ipv4-pool-name", r.IPv4Pool),
		checkPool("ipv6-pool-name", r.IPv6Pool),
		checkText("ipv4-expiration-uuid", r.IPv4UUID, maxUID),
		checkText("ipv6-expiration-uuid", r.IPv6UUID, maxUID),
		r.checkPod(),
		labelsErr,
	))
}

func (r *Request) checkHostIfIndex() error {
	if r.HostIfIndex <= 0 {
		return fmt.Errorf("interface-index: is %d, must be positive", r.HostIfIndex)
	}
	return nil
}

func (r *Request) checkMACs() error {
	var errs []error
	if r.PodMAC.IsZero() {
		errs = append(errs, errors.New("mac: missing"))
	} else if r.PodMAC[0]&1 != 0 {
		errs = append(errs, fmt.Errorf("mac: %s is a group address", r.PodMAC))
	}
	if r.HostMAC.IsZero() {
		errs = append(errs, errors.New("host-mac: missing"))
	} else if r.HostMAC[0]&1 != 0 {
		errs = append(errs, fmt.Errorf("host-mac: %s is a group address", r.HostMAC))
	}
	return errors.Join(errs...)
}

func (r *Request) checkAddresses() error {
	if !r.IPv4.IsValid() && !r.IPv6.IsValid() {
		return errors.New("addressing: neither ipv4 nor ipv6 is set")
	}
	var errs []error
	if r.IPv4.IsValid() && !r.IPv4.Is4() {
		errs = append(errs, fmt.Errorf("ipv4: %s is not an IPv4 address", r.IPv4))
	}
	if r.IPv6.IsValid() && (!r.IPv6.Is6() || r.IPv6.Is4In6() || r.IPv6.Zone() != "") {
		errs = append(errs, fmt.Errorf("ipv6: %s is not a plain IPv6 address", clip(r.IPv6.String())))
	}
	for _, a := range []netip.Addr{r.IPv4, r.IPv6} {
		if a.IsValid() && (a.IsUnspecified() || a.IsLoopback() || a.IsMulticast()) {
			errs = append(errs, fmt.Errorf("addressing: %s cannot be the address of a pod", clip(a.String())))
		}
	}
	return errors.Join(errs...)
}

func (r *Request) checkPod() error {
	if r.K8sPodName == "" && r.K8sNamespace == "" {
		return checkText("k8s-uid", r.K8sUID, maxUID)
	}
	return errors.Join(checkK8sName("k8s-namespace", r.K8sNamespace), checkK8sName("k8s-pod-name", r.K8sPodName),
		checkText("k8s-uid", r.K8sUID, maxUID))
}

// checkContainerID follows the CNI specification: a letter or digit, then letters, digits, '_', '.', '-'.
func checkContainerID(id string) error {
	if id == "" {
		return errors.New("container-id: missing")
	}
	if len(id) > maxContainerID {
		return fmt.Errorf("container-id: longer than %d characters", maxContainerID)
	}
	for i, c := range []byte(id) {
		if !isAlnum(c) && (i == 0 || !strings.ContainsRune("_.-", rune(c))) {
			return fmt.Errorf("container-id: %s: want letters, digits, '_', '.' and '-', the first a letter or digit", clip(id))
		}
	}
	return nil
}

// checkIfName accepts interface names that the kernel accepts, restricted to printable ASCII.
func checkIfName(name string) error {
	switch {
	case name == "":
		return errors.New("missing")
	case len(name) > maxIfName:
		return fmt.Errorf("%s: longer than %d characters", clip(name), maxIfName)
	case name == "." || name == "..":
		return fmt.Errorf("%s: is a path", clip(name))
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c > '~' || c == '/' || c == ':' {
			return fmt.Errorf("%s: want printable ASCII without space, '/' and ':'", clip(name))
		}
	}
	return nil
}

func checkPath(path string) error {
	if path == "" {
		return nil
	}
	if err := checkText("", path, maxPath); err != nil {
		return err
	}
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%s: must be absolute", clip(path))
	}
	return nil
}

// checkK8sName accepts the characters of DNS names; Kubernetes checks their positions.
func checkK8sName(name, value string) error {
	if value == "" {
		return fmt.Errorf("%s: missing", name)
	}
	if len(value) > maxK8sName {
		return fmt.Errorf("%s: longer than %d characters", name, maxK8sName)
	}
	for i, c := range []byte(value) {
		if !isAlnum(c) && (i == 0 || (c != '-' && c != '.')) {
			return fmt.Errorf("%s: %s: want letters, digits, '-' and '.', the first a letter or digit", name, clip(value))
		}
	}
	return nil
}

func checkPool(name, pool string) error {
	if pool == "" || pool == ipam.DefaultPool {
		return nil
	}
	return checkK8sName(name, pool)
}

// checkText accepts printable text up to a length.
func checkText(name, value string, longest int) error {
	if len(value) > longest {
		return field(name, fmt.Errorf("longer than %d bytes", longest))
	}
	if !utf8.ValidString(value) || strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return field(name, fmt.Errorf("%s: has characters that cannot be printed", clip(value)))
	}
	return nil
}

func field(name string, err error) error {
	if err == nil || name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", name, err)
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// clip quotes text of a client, so that a message contains neither terminal escapes nor ten kilobytes.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return strconv.QuoteToASCII(s)
	}
	return strconv.QuoteToASCII(s[:most]) + "..."
}
