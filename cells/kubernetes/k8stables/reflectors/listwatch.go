package reflectors

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// object is the row of an API object with the metadata that a reflector needs. It implements [runtime.Object].
type object struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	row    k8sobjects.Row // nil when err is set, unless it is of type [k8sobjects.Partly]
	err    error          // why there is no row, or which part of the object is missing in it
	before []event        // events that arrived together with this one, see [stream]
}

// DeepCopyObject implements runtime.Object. Rows are immutable, so the copies share them.
func (o *object) DeepCopyObject() runtime.Object {
	out := *o
	o.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

func (o *object) key() string {
	if o.Namespace == "" {
		return o.Name
	}
	return o.Namespace + "/" + o.Name
}

// shrink converts an object into a row and keeps no other part of it.
func shrink(in runtime.Object, nodeName string) (*object, error) {
	m, err := meta.Accessor(in)
	if err != nil {
		return nil, fmt.Errorf("read the metadata of %T: %w", in, err)
	}
	out := &object{ObjectMeta: metav1.ObjectMeta{Namespace: k8sobjects.Intern(m.GetNamespace()), Name: m.GetName(), UID: m.GetUID(),
		ResourceVersion: m.GetResourceVersion()}}
	out.row, out.err = k8sobjects.FromServer(in, nodeName)
	return out, nil
}

// errListRequired makes a reflector list instead of streaming.
var errListRequired = errors.New("a list by quorum is required")

// listWatch lists and watches objects of the API server. It shrinks each page and each event when it arrives, so that the objects of a large cluster
// are never in memory at once.
type listWatch struct {
	*cache.ListWatch
	nodeName string
	servers  servers
	quorum   atomic.Bool // the next list must be a quorum read
	report   *report
	client   *kubeapi.Client
	resource kubeapi.Resource
	read     reader        // of the events of a [stream]; nil for a watch of client-go
	gather   time.Duration // interval of [kubeapi.Gathering] of a stream; 0 reads each event immediately
	optional bool          // a resource without a definition has no objects
}

func (l *listWatch) wrap() *cache.ListWatch {
	return &cache.ListWatch{ListWithContextFunc: l.list, WatchFuncWithContext: l.watch}
}

func (l *listWatch) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if l.quorum.Load() && options.Continue == "" {
		options.ResourceVersion, options.ResourceVersionMatch = "", ""
	}
	page, err := retryWhileUnavailable(ctx, l.servers, func() (runtime.Object, error) {
		page, err := l.ListWithContextFunc(ctx, options)
		switch {
		case l.optional && options.Continue == "" && apierrors.IsNotFound(err):
			l.report.watched(ctx, err) // an empty list is complete, but it cannot be watched
			return &metav1.List{}, nil
		case err != nil:
			l.report.listed(ctx, err)
		}
		return page, err
	})
	if err != nil {
		return nil, err
	}
	m, err := meta.ListAccessor(page)
	if err != nil {
		return nil, err
	}
	out := &metainternal.List{ListMeta: metav1.ListMeta{ResourceVersion: m.GetResourceVersion(), Continue: m.GetContinue(),
		RemainingItemCount: m.GetRemainingItemCount()}}
	return out, meta.EachListItem(page, func(in runtime.Object) error {
		small, err := shrink(in, l.nodeName)
		if err == nil {
			out.Items = append(out.Items, small)
		}
		return err
	})
}

func (l *listWatch) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	stream := options.SendInitialEvents != nil && *options.SendInitialEvents
	if stream && l.quorum.Load() {
		return nil, errListRequired
	}
	return retryWhileUnavailable(ctx, l.servers, func() (watch.Interface, error) {
		in, err := l.open(ctx, options, stream)
		switch {
		case !stream || err == nil: // a stream continues as a watch
			l.report.watched(ctx, err)
		case err != nil && (!isStatusError(err) || apierrors.IsTooManyRequests(err)):
			l.report.listed(ctx, err) // the reflector retries the stream; after other API errors it lists, and the list reports its own error
		}
		return in, err
	})
}

// open opens a watch.
func (l *listWatch) open(ctx context.Context, options metav1.ListOptions, initial bool) (watch.Interface, error) {
	if l.read != nil {
		out := newStream(l.resource, l.nodeName, l.read, initial)
		if err := l.connect(ctx, options, out); err != nil {
			return nil, err
		}
		go out.run()
		return out, nil
	}
	in, err := l.WatchFuncWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	out := &shrunkWatch{in: in, out: make(chan watch.Event, 64), stop: make(chan struct{}), nodeName: l.nodeName}
	go out.run()
	return out, nil
}

// connect sends the request of a stream and stores the body of the response in it.
func (l *listWatch) connect(ctx context.Context, options metav1.ListOptions, to *stream) error {
	if l.gather > 0 {
		ctx = kubeapi.Gathering(ctx, l.gather, to.drained)
	}
	body, err := l.client.Stream(ctx, l.resource, "", options)
	if err != nil {
		return err
	}
	if to.body = body; l.gather == 0 {
		to.body = promptBody{body, to.drained}
	}
	return nil
}
