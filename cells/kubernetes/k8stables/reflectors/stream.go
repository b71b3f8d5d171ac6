package reflectors

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	kjson "sigs.k8s.io/json"

	"github.com/waggle-net/waggle/pkg/kubernetes/jsonscan"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// stream is a watch that decodes only the fields that rows need, and delivers all events of a burst at once: the last one, with the others in
// [object.before]. A watch of client-go delivers each event separately, through three goroutines, and reads its text seven times.
type stream struct {
	converter
	resource kubeapi.Resource
	read     reader
	body     io.ReadCloser
	out      chan watch.Event
	once     sync.Once
	stop     chan struct{}

	// The goroutine of run owns the fields below.
	initial bool // the events are the first list, which the reflector collects by name and passes on as a whole
	batch   []event
	stopped bool
}

// newStream returns a stream without a body. With initial, the stream begins with all objects and a bookmark.
func newStream(resource kubeapi.Resource, c converter, read reader, initial bool) *stream {
	return &stream{converter: c, resource: resource, read: read, out: make(chan watch.Event, 1), stop: make(chan struct{}), initial: initial}
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.out }

// Stop implements watch.Interface.
func (s *stream) Stop() {
	s.once.Do(func() {
		close(s.stop)
		_ = s.body.Close()
	})
}

// run reads until the body ends.
func (s *stream) run() {
	defer close(s.out)
	defer s.Stop()
	frames := jsonscan.NewFrames(s.body)
	for !s.stopped {
		frame, err := frames.Next()
		if err != nil { // the reflector opens a new watch
			s.drained()
			return
		}
		s.take(frame)
	}
}

// take decodes a frame and queues or delivers its event.
func (s *stream) take(frame []byte) {
	e, err := s.decode(frame)
	switch {
	case err != nil:
		s.drained()
		s.send(watch.Event{Type: watch.Error, Object: apierrors.NewClientErrorReporter(http.StatusInternalServerError, "GET", "ClientWatchDecoding").
			AsObject(fmt.Errorf("decode an event of a watch: %w", err))})
		return
	case e.Type == watch.Added || e.Type == watch.Modified || e.Type == watch.Deleted:
		s.batch = append(s.batch, event{e.Object.(*object), e.Type == watch.Deleted})
		if s.initial || len(s.batch) >= maxPending {
			s.drained()
		}
		return
	}
	s.drained()
	if o, ok := e.Object.(metav1.Object); ok && e.Type == watch.Bookmark && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
		s.initial = false
	}
	s.send(e)
}

// promptBody is a body without [kubeapi.Gathering]: it calls drained before each read.
type promptBody struct {
	io.ReadCloser
	drained func()
}

// Read implements io.Reader.
func (b promptBody) Read(p []byte) (int, error) {
	b.drained()
	return b.ReadCloser.Read(p)
}

// drained delivers the queued events. The reader calls it before it waits for more bytes, see [kubeapi.Gathering] and [promptBody].
func (s *stream) drained() {
	if len(s.batch) == 0 {
		return
	}
	last := s.batch[len(s.batch)-1]
	kind := watch.Modified
	switch {
	case last.deleted:
		kind = watch.Deleted
	case s.initial:
		kind = watch.Added
	}
	last.before = s.batch[:len(s.batch)-1]
	s.batch = nil
	s.send(watch.Event{Type: kind, Object: last.object})
}

func (s *stream) send(e watch.Event) {
	select {
	case s.out <- e:
	case <-s.stop:
		s.stopped = true
	}
}

// decode decodes an event and converts its object.
func (s *stream) decode(frame []byte) (watch.Event, error) {
	if e, ok := s.decodeFast(frame); ok {
		return e, nil
	}
	var raw struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(frame, &raw); err != nil {
		return watch.Event{}, err
	}
	e := watch.Event{Type: raw.Type}
	switch raw.Type {
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
		e.Object = s.resource.New()
	case watch.Error:
		e.Object = &metav1.Status{}
	default:
		return e, fmt.Errorf("unknown type %.20q", raw.Type)
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw.Object, e.Object); err != nil {
		return e, err
	}
	return s.convertEvent(e)
}

// decodeFast is the fast decoder of most events. It returns false for an event that needs decode.
func (s *stream) decodeFast(frame []byte) (e watch.Event, ok bool) {
	r := jsonscan.NewReader(frame)
	var types, objects int
	var o runtime.Object
	r.Object(func(name []byte) {
		switch string(name) {
		case "type":
			e.Type = eventType(r.Text())
			types++
		case "object":
			o = s.read(r, s.nodeName)
			objects++
		default:
			r.Skip()
		}
	})
	if !r.Done() || e.Type == "" || types != 1 || objects != 1 {
		return e, false
	}
	e.Object = o
	e, err := s.convertEvent(e)
	return e, err == nil
}

// eventType returns the type of an event with an object; empty for other types.
func eventType(text []byte) watch.EventType {
	for _, t := range []watch.EventType{watch.Modified, watch.Added, watch.Deleted} {
		if string(text) == string(t) {
			return t
		}
	}
	return ""
}
