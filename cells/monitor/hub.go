package monitor

import (
	"sync"

	"github.com/waggle-net/waggle/pkg/monitorwire"
)

// hub hands every payload to every listener without waiting for any.
type hub struct {
	mu        sync.Mutex // guards listeners and each one's missed
	listeners map[*listener]struct{}
}

// listener is one connection.
type listener struct {
	queue  chan *monitorwire.Payload
	missed uint64 // payloads that found the queue full and were not told yet
}

func newHub() *hub { return &hub{listeners: make(map[*listener]struct{})} }

// join adds a listener with a queue of n payloads.
func (h *hub) join(n int) *listener {
	l := &listener{queue: make(chan *monitorwire.Payload, n)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listeners[l] = struct{}{}
	return l
}

func (h *hub) leave(l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.listeners, l)
}

// idle tells whether nobody listens, so that the caller need not make a payload.
func (h *hub) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.listeners) == 0
}

// send queues a payload for all. A listener that is behind misses it, and is told how many it missed once it has room.
func (h *hub) send(p *monitorwire.Payload) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := range h.listeners {
		if l.missed > 0 && l.put(&monitorwire.Payload{Lost: l.missed, Type: monitorwire.TypeLost}) {
			l.missed = 0
		}
		if l.missed > 0 || !l.put(p) {
			l.missed++
		}
	}
}

func (l *listener) put(p *monitorwire.Payload) bool {
	select {
	case l.queue <- p:
		return true
	default:
		return false
	}
}
