package reflectors

import (
	"fmt"
	"io"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// farEndpoint returns the CiliumEndpoint of another node in the encoding of an API server.
func farEndpoint(name string, version int) string {
	return fmt.Sprintf(`{"apiVersion":"cilium.io/v2","kind":"CiliumEndpoint","metadata":{"name":%q,"namespace":"a","resourceVersion":"%d","uid":"u"},`+
		`"status":{"identity":{"id":40000},"networking":{"addressing":[{"ipv4":"10.51.0.%d"}],"node":"192.0.2.2"}}}`, name, version, version)
}

func streamText(kind watch.EventType, object string) string {
	return fmt.Sprintf(`{"type":%q,"object":%s}`, kind, object) + "\n"
}

const initialEnd = `{"kind":"CiliumEndpoint","apiVersion":"cilium.io/v2","metadata":{"resourceVersion":"3","creationTimestamp":null,` +
	`"annotations":{"k8s.io/initial-events-end":"true"}}}`

// reading is a body of pieces. It calls drained before each piece except the first, and before its end.
type reading struct {
	pieces  []string
	drained func()
	begun   bool
}

func (r *reading) Read(p []byte) (int, error) {
	if r.begun {
		r.drained()
	}
	r.begun = true
	if len(r.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.pieces[0])
	if r.pieces[0] = r.pieces[0][n:]; r.pieces[0] == "" {
		r.pieces = r.pieces[1:]
	}
	return n, nil
}

func (r *reading) Close() error { return nil }

// handedOver runs a stream and describes the events that the reflector receives, each with its earlier events.
func handedOver(initial bool, pieces ...string) (out []string) {
	s := newStream(kubeapi.CiliumEndpoints, converter{nodeName: "one"}, readEndpoint, initial)
	s.body = &reading{pieces: pieces, drained: s.drained}
	go s.run()
	for e := range s.ResultChan() {
		text := string(e.Type)
		switch o := e.Object.(type) {
		case *object:
			for _, b := range o.before {
				text += fmt.Sprintf(" [%s %s deleted=%v]", b.name, b.version, b.deleted)
			}
			text += fmt.Sprintf(" %s %s row=%v", o.name, o.version, o.row != nil)
		case *metav1.Status:
			text += fmt.Sprintf(" %d", o.Code)
		}
		out = append(out, text)
	}
	return out
}

func TestStream_BatchesEventsReceivedTogether(t *testing.T) {
	t.Parallel()
	added, modified, deleted := streamText(watch.Added, farEndpoint("a", 4)), streamText(watch.Modified, farEndpoint("b", 5)),
		streamText(watch.Deleted, farEndpoint("c", 6))
	own := streamText(watch.Modified, strings.Replace(farEndpoint("own", 7), `"uid":"u"`, `"uid":"u","labels":{"waggle.io/node":"one"}`, 1))
	for name, c := range map[string]struct {
		initial bool
		pieces  []string
		want    []string
	}{
		"one":           {pieces: []string{added}, want: []string{"MODIFIED a 4 row=true"}},
		"three at once": {pieces: []string{added + modified + deleted}, want: []string{"DELETED [a 4 deleted=false] [b 5 deleted=false] c 6 row=true"}},
		"in two pieces": {pieces: []string{added + modified[:50], modified[50:] + deleted}, want: []string{"MODIFIED a 4 row=true",
			"DELETED [b 5 deleted=false] c 6 row=true"}},
		"of this node": {pieces: []string{added + own}, want: []string{"MODIFIED [a 4 deleted=false] own 7 row=true"}},
		"the first list by itself": {initial: true, pieces: []string{added + modified + streamText(watch.Bookmark, initialEnd) + deleted + added},
			want: []string{"ADDED a 4 row=true", "ADDED b 5 row=true", "BOOKMARK  3 row=false", "MODIFIED [c 6 deleted=true] a 4 row=true"}},
		"an error": {pieces: []string{added + streamText(watch.Error, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":410}`)},
			want: []string{"MODIFIED a 4 row=true", "ERROR 410"}},
		"malformed":       {pieces: []string{added + `{"type":"MODIFIED","object":{"metadata":5}}`}, want: []string{"MODIFIED a 4 row=true", "ERROR 500"}},
		"no event":        {pieces: []string{`{"kind":"Status"}`}, want: []string{"ERROR 500"}},
		"cut":             {pieces: []string{added + modified[:50]}, want: []string{"MODIFIED a 4 row=true"}},
		"no JSON":         {pieces: []string{added + "gone"}, want: []string{"MODIFIED a 4 row=true"}},
		"a row is in err": {pieces: []string{streamText(watch.Added, farEndpoint("UPPER", 8))}, want: []string{"MODIFIED UPPER 8 row=false"}},
	} {
		if got := handedOver(c.initial, c.pieces...); strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A stopped stream ends even if its events are not received.
func TestStream_StopWithoutReceiver_Ends(t *testing.T) {
	t.Parallel()
	s := newStream(kubeapi.CiliumEndpoints, converter{nodeName: "one"}, readEndpoint, false)
	var pieces []string
	for i := range 100 {
		pieces = append(pieces, streamText(watch.Added, farEndpoint("a", i)))
	}
	s.body = &reading{pieces: pieces, drained: s.drained}
	ended := make(chan struct{})
	go func() { defer close(ended); s.run() }()
	<-s.ResultChan()
	s.Stop()
	<-ended
}

// Most events take the fast path.
func TestStream_EventsOfOtherNodes_UseFastPath(t *testing.T) {
	t.Parallel()
	s := newStream(kubeapi.CiliumEndpoints, converter{nodeName: "one"}, readEndpoint, false)
	for _, kind := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		if e, ok := s.decodeFast([]byte(streamText(kind, farEndpoint("a", 4)))); !ok || e.Type != kind {
			t.Errorf("%s: %v, %v", kind, e, ok)
		}
	}
	for _, text := range []string{streamText(watch.Bookmark, initialEnd), streamText(watch.Error, `{}`), `{"type":"ADDED"}`, `{"object":{}}`,
		`{"type":"ADDED","type":"ADDED","object":` + farEndpoint("a", 4) + `}`} {
		if _, ok := s.decodeFast([]byte(text)); ok {
			t.Errorf("%s is known", text)
		}
	}
}

// TestTake_BatchIsInOrder: of the events of one batch, the last one is applied last.
func TestTake_BatchIsInOrder(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	last := small(t, "a", "192.0.2.3", "3")
	last.before = []event{{small(t, "a", "192.0.2.1", "1"), false}, {small(t, "b", "192.0.2.2", "2"), false}, {small(t, "b", "192.0.2.2", "1"), true}}
	if err := s.Update(last); err != nil {
		t.Fatal(err)
	}
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	txn := s.set.DB.ReadTxn()
	if row, _ := s.table.Get(txn, "a"); fmt.Sprint(row) != fmt.Sprint(last.row) {
		t.Errorf("a is %v", row)
	}
	if _, ok := s.table.Get(txn, "b"); !ok {
		t.Error("an event that came late deleted b")
	}
}
