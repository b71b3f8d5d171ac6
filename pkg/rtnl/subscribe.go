package rtnl

import (
	"context"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
)

// Event is one announced change. Exactly one field is set.
type Event struct {
	Link  *netlink.LinkUpdate
	Addr  *netlink.AddrUpdate
	Route *netlink.RouteUpdate
	Neigh *netlink.NeighUpdate
}

// DefaultBuffer is the receive buffer of a subscription in bytes: enough for a few thousand pods at once.
const DefaultBuffer = 4 << 20

// Subscription delivers events until its context ends or a socket is lost.
type Subscription struct {
	// Events is closed at the end. Changes of one kind arrive in order; those of different kinds may overtake each
	// other, because each kind has a socket of its own.
	Events <-chan Event

	mu     sync.Mutex
	reason error
}

// Err says why the events ended; nil when the context did.
func (s *Subscription) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

func (s *Subscription) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason == nil {
		s.reason = err
	}
}

// Subscribe announces changes of links, addresses, routes and neighbours. When a socket is overrun all of it ends:
// subscribe again, then list.
func (h *Handle) Subscribe(ctx context.Context, buffer int) (*Subscription, error) {
	ctx, cancel := context.WithCancel(ctx)
	out := make(chan Event, 64)
	s := &Subscription{Events: out}
	var pumps sync.WaitGroup
	err := h.within(func() error { return s.open(ctx, cancel, &pumps, out, buffer) })
	go func() {
		pumps.Wait()
		cancel()
		close(out)
	}()
	if err != nil {
		cancel()
		return nil, fmt.Errorf("subscribe to changes of the network: %w", err)
	}
	return s, nil
}

// open makes the four sockets. Whatever was opened before an error ends with the context.
func (s *Subscription) open(ctx context.Context, end func(), pumps *sync.WaitGroup, out chan<- Event, buffer int) error {
	// A message that cannot be parsed reports here too and ends nothing: the observer's regular full pass repairs
	// what it would have said. Only a socket that is gone closes its channel.
	lost := func(err error) {
		if ctx.Err() == nil {
			s.fail(err)
		}
	}
	links := make(chan netlink.LinkUpdate)
	if err := netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: lost,
		ReceiveBufferSize: buffer, ReceiveBufferForceSize: true}); err != nil {
		return err
	}
	pump(ctx, end, pumps, links, out, func(u netlink.LinkUpdate) Event { return Event{Link: &u} })

	addrs := make(chan netlink.AddrUpdate)
	if err := netlink.AddrSubscribeWithOptions(addrs, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: lost,
		ReceiveBufferSize: buffer, ReceiveBufferForceSize: true}); err != nil {
		return err
	}
	pump(ctx, end, pumps, addrs, out, func(u netlink.AddrUpdate) Event { return Event{Addr: &u} })

	routes := make(chan netlink.RouteUpdate)
	if err := netlink.RouteSubscribeWithOptions(routes, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: lost,
		ReceiveBufferSize: buffer, ReceiveBufferForceSize: true}); err != nil {
		return err
	}
	pump(ctx, end, pumps, routes, out, func(u netlink.RouteUpdate) Event { return Event{Route: &u} })

	neighs := make(chan netlink.NeighUpdate)
	if err := netlink.NeighSubscribeWithOptions(neighs, ctx.Done(), netlink.NeighSubscribeOptions{ErrorCallback: lost,
		ReceiveBufferSize: buffer, ReceiveBufferForceSize: true}); err != nil {
		return err
	}
	pump(ctx, end, pumps, neighs, out, func(u netlink.NeighUpdate) Event { return Event{Neigh: &u} })
	return nil
}

// pump hands on what one socket says. When the socket is lost it ends the whole subscription; when the subscription
// ends it keeps reading until the socket's goroutine has gone, which would otherwise wait for a reader for ever.
func pump[U any](ctx context.Context, end func(), pumps *sync.WaitGroup, in <-chan U, out chan<- Event, wrap func(U) Event) {
	pumps.Go(func() {
		defer end()
		for u := range in {
			select {
			case out <- wrap(u):
			case <-ctx.Done():
			}
		}
	})
}
