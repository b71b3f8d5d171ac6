// Package endpoint is the contract between the API and the cell that keeps endpoints.
package endpoint

import (
	"context"
	"errors"
	"net/netip"

	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// Errors that callers tell apart with errors.Is; the message names the field and both sides of a conflict.
var (
	ErrNotFound    = errors.New("endpoint not found")
	ErrExists      = errors.New("endpoint exists already")        // the attachment, the interface or an address is taken
	ErrInvalid     = errors.New("invalid request")                // a field is missing or malformed
	ErrUnsupported = errors.New("unsupported endpoint id prefix") // e.g. cilium-global
	ErrNotReady    = errors.New("endpoint did not become ready")  // with sync build: timeout, with the last error
	ErrFull        = errors.New("no endpoint id is free")
)

// Request is a checked request to create an endpoint.
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
	Labels                  []string // "source:key=value"; reserved: is refused
	// Wait makes Create return only when the endpoint's rows and programs are in the kernel.
	Wait bool
}

// Manager creates, finds and deletes endpoints. All methods may be called from any goroutine. Create and Delete wait
// until the state files of an earlier run are read.
type Manager interface {
	// Create claims the addresses, stores the endpoint and, with Wait, waits for it. When it fails nothing is left of
	// it, and its addresses are released again (they go back to being allocated by the caller only if they were).
	Create(ctx context.Context, req Request) (*endpoints.Endpoint, error)
	// Lookup finds an endpoint by "[prefix:]id". Errors: [ErrNotFound], [ErrInvalid], [ErrUnsupported].
	Lookup(id string) (*endpoints.Endpoint, error)
	// Delete removes one endpoint and gives its addresses back. Errors: [ErrNotFound] and those of Lookup.
	Delete(ctx context.Context, id string) error
	// DeleteContainer removes every endpoint of a container and says how many there were. A late call for an old
	// sandbox never touches a newer endpoint of the same pod.
	DeleteContainer(ctx context.Context, containerID string) (int, error)
	// SetLabels replaces the user's labels of an endpoint.
	SetLabels(id string, labels []string) (*endpoints.Endpoint, error)
	// Restored is closed once the state files are read and their ids and addresses are held.
	Restored() <-chan struct{}
}
