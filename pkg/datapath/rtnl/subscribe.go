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
	// Events is closed at the end. Changes of one kind arrive in order. Changes of different kinds may be reordered, because each kind has its own socket.
	Events <-chan Event

	mu     sync.Mutex
	reason error
}

// Err returns the reason why the events ended; nil if the context ended.
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

// Subscribe subscribes to changes of links, addresses, routes and neighbours. When a socket overruns, the whole subscription ends; the caller must subscribe
// again and then list.
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

// open creates the four sockets. After an error, the end of the context closes the sockets that are open.
func (s *Subscription) open(ctx context.Context, end func(), pumps *sync.WaitGroup, out chan<- Event, buffer int) error {
	// A message that cannot be parsed is reported here as well and does not end the subscription: the observer's regular full pass finds the change. Only a lost
	// socket closes its channel.
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

// pump forwards the events of one socket. When the socket is lost, pump ends the whole subscription. When the subscription ends, pump keeps reading until the
// socket's goroutine has exited, which would otherwise wait for a reader forever.
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
