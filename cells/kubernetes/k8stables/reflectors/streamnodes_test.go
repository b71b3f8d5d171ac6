package reflectors

import (
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/waggle-net/waggle/pkg/kubernetes/jsonscan"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// unread is a reader that leaves all objects to the decoder of Kubernetes.
func unread(r *jsonscan.Reader, _ string) runtime.Object {
	r.Fail()
	return nil
}

// TestStream_CiliumNodes_SameAsDecoderOfKubernetes compares the events of usual and unusual objects with those of the decoder of Kubernetes.
func TestStream_CiliumNodes_SameAsDecoderOfKubernetes(t *testing.T) {
	t.Parallel()
	text := string(jsonText(t, wholeCiliumNode(1)))
	quick, slow := newStream(kubeapi.CiliumNodes, converter{nodeName: "one"}, readNode, false), newStream(kubeapi.CiliumNodes, converter{nodeName: "one"}, unread, false)
	for name, c := range map[string]struct {
		from, to  string
		fast, row bool
	}{
		"as an agent writes it": {fast: true, row: true},
		"an unknown field":      {from: `"spec":{`, to: `"spec":{"new":[{"a":null}],`, fast: true, row: true},
		"a null":                {from: `"addresses":[`, to: `"addresses":[null,`, row: true},
		"a key of 300":          {from: `"spec":{`, to: `"spec":{"encryption":{"key":300},`, fast: true, row: true},
		"an invalid label":      {from: `"node-role":"worker"`, to: `"node-role":"a b"`, fast: true},
		"an invalid name":       {from: `"name":"ip-10`, to: `"name":"IP-10`, fast: true},
		"a twofold member":      {from: `"spec":{`, to: `"spec":{},"spec":{`, row: true},
	} {
		changed := strings.Replace(text, c.from, c.to, 1)
		if c.from != "" && changed == text {
			t.Errorf("%s: the text has no %s", name, c.from)
		}
		for _, kind := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
			frame := []byte(streamText(kind, changed))
			if _, fast := quick.decodeFast(frame); fast != c.fast {
				t.Errorf("%s: fast is %v", name, fast)
			}
			got, err := quick.decode(frame)
			want, wantErr := slow.decode(frame)
			if err != nil || wantErr != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v, %v; want %+v, %v", name, got, err, want, wantErr)
			} else if o := got.Object.(*object); (o.row != nil) != c.row || (o.err == nil) != c.row || o.version != "1001" || got.Type != kind {
				t.Errorf("%s: %s %+v", name, got.Type, o)
			}
		}
	}
}

// TestStream_WithoutGathering_DeliversEventsAtOnce: an event is delivered before the stream waits for the next one, and events of one read are one batch.
func TestStream_WithoutGathering_DeliversEventsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in, out := io.Pipe()
		s := newStream(kubeapi.CiliumEndpoints, converter{nodeName: "one"}, readEndpoint, false)
		s.body = promptBody{in, s.drained}
		ended := make(chan struct{})
		go func() { defer close(ended); s.run() }()
		first, second := streamText(watch.Added, farEndpoint("a", 4)), streamText(watch.Modified, farEndpoint("b", 5))
		for _, c := range []struct {
			text string
			want []string
		}{{first, []string{"a"}}, {first + second, []string{"a", "b"}}, {second + first[:40], []string{"b"}}, {first[40:], []string{"a"}}} {
			if _, err := out.Write([]byte(c.text)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			select {
			case e := <-s.ResultChan():
				var names []string
				o := e.Object.(*object)
				for _, b := range o.before {
					names = append(names, b.name)
				}
				if names = append(names, o.name); !reflect.DeepEqual(names, c.want) {
					t.Errorf("%q, want %q", names, c.want)
				}
			default:
				t.Fatalf("%q are not delivered", c.want)
			}
		}
		s.Stop()
		<-ended
	})
}
