package reflectors

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// shrunkWatch shrinks the objects of events. Unlike watch.Filter, it also ends when it is stopped while no receiver reads its events.
type shrunkWatch struct {
	in       watch.Interface
	out      chan watch.Event
	once     sync.Once
	stop     chan struct{}
	nodeName string
}

// ResultChan implements watch.Interface.
func (w *shrunkWatch) ResultChan() <-chan watch.Event { return w.out }

// Stop implements watch.Interface.
func (w *shrunkWatch) Stop() {
	w.once.Do(func() {
		close(w.stop)
		w.in.Stop()
	})
}

func (w *shrunkWatch) run() {
	defer close(w.out)
	defer w.in.Stop()
	for event := range w.in.ResultChan() {
		select {
		case w.out <- w.shrink(event):
		case <-w.stop:
			return
		}
	}
}

func (w *shrunkWatch) shrink(event watch.Event) watch.Event {
	small, err := shrinkEvent(event, w.nodeName)
	if err != nil {
		return event
	}
	return small
}

// shrinkEvent shrinks the object of an event. A bookmark keeps its version and its annotations, one of which marks the end of the initial events.
func shrinkEvent(event watch.Event, nodeName string) (watch.Event, error) {
	switch event.Type {
	case watch.Added, watch.Modified, watch.Deleted:
		small, err := shrink(event.Object, nodeName)
		if err != nil {
			return event, err
		}
		event.Object = small
	case watch.Bookmark:
		if m, ok := event.Object.(metav1.Object); ok {
			event.Object = &object{ObjectMeta: metav1.ObjectMeta{ResourceVersion: m.GetResourceVersion(),
				Annotations: m.GetAnnotations()}}
		}
	}
	return event, nil
}
