package monitor

import (
	"sync"

	"github.com/waggle-net/waggle/pkg/monitorwire"
)

// hub queues every payload for every listener and never blocks on a listener.
type hub struct {
	mu        sync.Mutex // guards listeners and the field missed of each listener
	listeners map[*listener]struct{}
}

// listener is one connection.
type listener struct {
	queue  chan *monitorwire.Payload
	missed uint64 // payloads that did not fit into the queue and are not reported to the client yet
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

// idle reports whether there are no listeners, so that the caller need not make a payload.
func (h *hub) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.listeners) == 0
}

// send queues a payload for all listeners. A listener whose queue is full misses the payload; once the queue has space, the listener gets the number of missed
// payloads.
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
