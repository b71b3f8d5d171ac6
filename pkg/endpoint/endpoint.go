// Package endpoint is the contract between the API and the cell that manages endpoints.
package endpoint

import (
	"context"
	"errors"
	"net/netip"

	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// Errors for errors.Is; the message names the field and both sides of a conflict.
var (
	ErrNotFound    = errors.New("endpoint not found")
	ErrExists      = errors.New("endpoint exists already")        // the attachment, the interface or an address is in use
	ErrInvalid     = errors.New("invalid request")                // a field is missing or malformed
	ErrUnsupported = errors.New("unsupported endpoint id prefix") // e.g. cilium-global
	ErrNotReady    = errors.New("endpoint did not become ready")  // with sync build: timeout, with the last error
	ErrFull        = errors.New("no endpoint id is free")
)

// Request is a validated request to create an endpoint.
type Request struct {
	ContainerID, IfName     string
	NetnsPath               string
	NetnsCookie, NetnsInode uint64
	HostIfName              string
	HostIfIndex             int
	HostMAC, PodMAC         mac.Addr
	IPv4, IPv6              netip.Addr // at least one is valid
	IPv4Pool, IPv6Pool      string
	IPv4UUID, IPv6UUID      string // expiration UUIDs of the allocation
	K8sNamespace            string
	K8sPodName, K8sUID      string
	Labels                  []string // "source:key=value"; the source reserved is rejected
	// Wait makes Create return only after the endpoint's entries and programs are in the kernel.
	Wait bool
}

// Manager creates, finds and deletes endpoints. All methods may be called from any goroutine. Create and Delete wait until the state files of a previous run
// are read.
type Manager interface {
	// Create claims the addresses, stores the endpoint and, with Wait, waits until it is ready. When Create fails, it deletes the endpoint and releases its
	// addresses (an allocation of the caller becomes an unclaimed allocation again).
	Create(ctx context.Context, req Request) (*endpoints.Endpoint, error)
	// Lookup finds an endpoint by "[prefix:]id". Errors: [ErrNotFound], [ErrInvalid], [ErrUnsupported].
	Lookup(id string) (*endpoints.Endpoint, error)
	// Delete deletes one endpoint and releases its addresses. Errors: [ErrNotFound] and the errors of Lookup.
	Delete(ctx context.Context, id string) error
	// DeleteContainer deletes every endpoint of a container and returns their number. A late call for an old sandbox never affects a newer endpoint of the
	// same pod.
	DeleteContainer(ctx context.Context, containerID string) (int, error)
	// SetLabels replaces the user's labels of an endpoint.
	SetLabels(id string, labels []string) (*endpoints.Endpoint, error)
	// Restored is closed after the state files are read and their ids and addresses are claimed.
	Restored() <-chan struct{}
}
