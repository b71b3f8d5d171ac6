package kubetest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
)

// event is a line of a watch.
type event struct {
	Type   watch.EventType `json:"type"`
	Object any             `json:"object"`
}

// watcher is one open watch.
type watcher struct {
	store     *store
	call      call
	selected  selector
	version   int64 // version of the last change that was processed
	bookmarks int   // number of sent bookmarks
	wanted    bool  // the client requests bookmarks
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, c call) {
	query := r.URL.Query()
	watcher, first, err := s.newWatcher(c, query)
	if err != nil {
		respondError(w, err)
		return
	}
	end := r.Context().Done()
	var timeout <-chan time.Time
	if seconds, _ := strconv.Atoi(query.Get("timeoutSeconds")); seconds > 0 {
		timeout = time.After(time.Duration(seconds) * time.Second)
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(http.StatusOK)
	encoder, flusher := json.NewEncoder(w), w.(http.Flusher)
	for {
		for _, e := range first {
			if encoder.Encode(e) != nil || e.Type == watch.Error {
				return
			}
		}
		flusher.Flush()
		var changed <-chan struct{}
		if first, changed = watcher.next(); len(first) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-timeout:
			return
		case <-end:
			return
		}
	}
}

// newWatcher parses the options of a watch and returns its initial events.
func (s *Server) newWatcher(c call, query url.Values) (*watcher, []event, error) {
	selected, err := newSelector(c, query)
	if err != nil {
		return nil, nil, err
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	w := &watcher{store: s.store, call: c, selected: selected, wanted: query.Get("allowWatchBookmarks") == "true",
		bookmarks: s.store.bookmarks[c.Resource]}
	initial := query.Get("sendInitialEvents") == "true"
	if initial && !s.store.watchList {
		return nil, nil, apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "",
			field.ErrorList{field.Forbidden(field.NewPath("sendInitialEvents"),
				"sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")})
	}
	asked, err := s.store.listVersion(query)
	if err != nil {
		return nil, nil, err
	}
	w.version, _ = strconv.ParseInt(asked, 10, 64)
	if w.version > 0 && !initial {
		return w, nil, nil
	}
	w.version = s.store.version
	return w, w.initial(initial), nil
}

// initial returns events for all objects. The caller must hold the lock.
func (w *watcher) initial(marked bool) []event {
	var out []event
	objects := w.store.sorted(w.call.Resource)
	if w.store.takeEmpty(w.call.Resource) {
		objects = nil
	}
	for _, object := range objects {
		if w.selected.match(object) {
			out = append(out, event{watch.Added, shown(w.call.resource, object)})
		}
	}
	if marked {
		out = append(out, w.bookmark(map[string]any{metav1.InitialEventsAnnotationKey: "true"}))
	}
	return out
}

// next returns the events since the last call, and a channel that is closed when there may be more.
func (w *watcher) next() ([]event, <-chan struct{}) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	changes, ok := w.store.after(w.call.Resource, w.version)
	if !ok {
		return []event{{watch.Error, statusOf(gone(w.version, w.store.compacted))}}, nil
	}
	var out []event
	for _, c := range changes {
		if e, ok := w.event(c); ok {
			out = append(out, e)
			if w.store.doubled {
				out = append(out, e)
			}
		}
	}
	w.version = w.store.version
	if asked := w.store.bookmarks[w.call.Resource]; asked > w.bookmarks {
		w.bookmarks = asked
		if w.wanted {
			out = append(out, w.bookmark(nil))
		}
	}
	return out, w.store.changed
}

// event converts a change to an event for the selector: an object that is no longer selected is deleted.
func (w *watcher) event(c change) (event, bool) {
	before, after := w.selected.match(c.old), c.kind != watch.Deleted && w.selected.match(c.new)
	kind := watch.Modified
	switch {
	case !before && !after:
		return event{}, false
	case !before:
		kind = watch.Added
	case !after:
		kind = watch.Deleted
	}
	object := c.new
	if kind == watch.Deleted && c.kind != watch.Deleted {
		object = c.old.DeepCopy()
		object.SetResourceVersion(c.new.GetResourceVersion())
	}
	return event{kind, shown(w.call.resource, object)}, true
}

// bookmark returns a bookmark with the current version. The caller must hold the lock.
func (w *watcher) bookmark(annotations map[string]any) event {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(w.call.resource.GroupVersion.WithKind(kindOf(w.call.resource)))
	metadata := map[string]any{"resourceVersion": strconv.FormatInt(w.store.version, 10), "creationTimestamp": nil}
	if annotations != nil {
		metadata["annotations"] = annotations
	}
	object.Object["metadata"] = metadata
	return event{watch.Bookmark, shown(w.call.resource, object)}
}
