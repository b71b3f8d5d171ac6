// Package ipam is the contract between those who need pod addresses and the cell that gives them out.
package ipam

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

// DefaultPool is the pool that is meant when none is named.
const DefaultPool = "default"

// Errors that callers tell apart with errors.Is. The full message says how many addresses are used, quarantined and
// excluded, and by whom.
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

// Request asks for the next free addresses.
type Request struct {
	IPv4, IPv6 bool   // which families; both false means every enabled one
	Owner      string // "namespace/pod" or another name for people
	Pool       string // empty means [DefaultPool]
	// Expire makes the allocation end after [ExpireAfter] unless it is claimed with the UUID of the result.
	Expire bool
}

// ExpireAfter is how long an allocation waits for its claim.
const ExpireAfter = 10 * time.Minute

// Allocation is one address that was given.
type Allocation struct {
	Addr    netip.Addr
	Range   netip.Prefix // the pod CIDR it came from
	Gateway netip.Addr   // router address of the same family
	Pool    string
	UUID    string // present at the claim; empty unless the request asked for expiry
}

// Result holds what a request gave. A family that was not asked for is nil.
type Result struct{ IPv4, IPv6 *Allocation }

// Claim takes an allocated address into use.
type Claim struct {
	Addr       netip.Addr
	Pool       string // empty means [DefaultPool]
	UUID       string // as given by the allocation; empty when it had none
	Owner      string
	Attachment string // "<container id>:<interface>"
}

// Allocator gives out, takes back and remembers addresses. All methods may be called from any goroutine.
type Allocator interface {
	// Next gives one free address of each family asked for, or none at all.
	Next(ctx context.Context, req Request) (Result, error)
	// Specific gives exactly addr. Errors: [ErrTaken], [ErrExcluded], [ErrNotInRange], [ErrNoRange].
	Specific(ctx context.Context, addr netip.Addr, owner, pool string) error
	// Claim takes all addresses into use for an attachment, or none. An address that nobody allocated is allocated by
	// the claim when UUID is empty and it is free. Errors: [ErrExpired], [ErrTaken], ...
	Claim(claims []Claim) error
	// Restore holds addresses of endpoints of an earlier run, before any range is known and before anything else can
	// allocate. It returns one error for each address that somebody else has.
	Restore(claims []Claim) error
	// Release gives addr back; it goes into quarantine first. Found is false when nobody had it. A claimed address is
	// released only when attachment is the one that claimed it ([ErrInUse] otherwise); an allocation that was never
	// claimed is released whatever attachment says. Reserved and excluded addresses are refused.
	Release(addr netip.Addr, pool, attachment string) (found bool, err error)
	// RestoreDone says that everything from earlier runs is held: from here on others may allocate.
	RestoreDone()
}
