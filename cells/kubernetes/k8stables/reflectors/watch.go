package reflectors

import (
	"sync"

	"k8s.io/apimachinery/pkg/watch"
)

// convertedWatch converts the objects of events. Unlike watch.Filter, it also ends when it is stopped while no receiver reads its events.
type convertedWatch struct {
	converter
	in   watch.Interface
	out  chan watch.Event
	once sync.Once
	stop chan struct{}
}

// ResultChan implements watch.Interface.
func (w *convertedWatch) ResultChan() <-chan watch.Event { return w.out }

// Stop implements watch.Interface.
func (w *convertedWatch) Stop() {
	w.once.Do(func() {
		close(w.stop)
		w.in.Stop()
	})
}

func (w *convertedWatch) run() {
	defer close(w.out)
	defer w.in.Stop()
	for event := range w.in.ResultChan() {
		select {
		case w.out <- w.unlessInvalid(event):
		case <-w.stop:
			return
		}
	}
}

// unlessInvalid converts an event. It returns an event whose object has no metadata unchanged, and the reflector reports it.
func (w *convertedWatch) unlessInvalid(event watch.Event) watch.Event {
	converted, err := w.convertEvent(event)
	if err != nil {
		return event
	}
	return converted
}
