// Package ipam is the contract between users of pod addresses and the cell that allocates them.
package ipam

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

// DefaultPool is the pool of requests without a pool.
const DefaultPool = "default"

// Errors for errors.Is. The full message contains the numbers of used, quarantined and excluded addresses, and their owners.
var (
	ErrExhausted  = errors.New("range is full")
	ErrTaken      = errors.New("provided IP is already allocated")
	ErrNotInRange = errors.New("provided IP is not in the valid range")
	ErrExcluded   = errors.New("provided IP is excluded")
	ErrNoRange    = errors.New("no pod CIDR is known for this node yet")
	ErrExpired    = errors.New("the allocation has expired or its UUID does not match")
	ErrBadPool    = errors.New("unknown pool")
	ErrInUse      = errors.New("an endpoint uses the address")
)

// Request requests the next free addresses.
type Request struct {
	IPv4, IPv6 bool   // requested families; both false means every enabled one
	Owner      string // "namespace/pod" or another readable name
	Pool       string // empty means [DefaultPool]
	// Expire limits the allocation to [ExpireAfter] unless it is claimed with the UUID of the result.
	Expire bool
}

// ExpireAfter is the time to claim an expiring allocation.
const ExpireAfter = 10 * time.Minute

// Allocation is one allocated address.
type Allocation struct {
	Addr    netip.Addr
	Range   netip.Prefix // pod CIDR of the address
	Gateway netip.Addr   // router address of the same family
	Pool    string
	UUID    string // required by the claim; empty unless the request set Expire
}

// Result holds the allocated addresses. A family that was not requested is nil.
type Result struct{ IPv4, IPv6 *Allocation }

// Claim marks an allocated address as in use.
type Claim struct {
	Addr       netip.Addr
	Pool       string // empty means [DefaultPool]
	UUID       string // UUID of the allocation; empty when it had none
	Owner      string
	Attachment string // "<container id>:<interface>"
}

// Allocator allocates, releases and records addresses. All methods may be called from any goroutine.
type Allocator interface {
	// Next allocates one free address of each requested family, or none at all.
	Next(ctx context.Context, req Request) (Result, error)
	// Specific allocates exactly addr. Errors: [ErrTaken], [ErrExcluded], [ErrNotInRange], [ErrNoRange].
	Specific(ctx context.Context, addr netip.Addr, owner, pool string) error
	// Claim claims all addresses for an attachment, or none. It allocates a free address without an allocation when UUID is empty. Errors: [ErrExpired],
	// [ErrTaken], ...
	Claim(claims []Claim) error
	// Restore claims addresses of restored endpoints, before any range is known and before other allocations are possible. It returns one error for each
	// address that has another owner.
	Restore(claims []Claim) error
	// Release releases addr into quarantine. found is false when addr is not allocated. A claimed address is released only when attachment is its claimant
	// ([ErrInUse] otherwise); an unclaimed allocation is released whatever attachment is. Reserved and excluded addresses are rejected.
	Release(addr netip.Addr, pool, attachment string) (found bool, err error)
	// RestoreDone ends restoration: all addresses of previous runs are claimed, and other allocations are possible from now on.
	RestoreDone()
}
