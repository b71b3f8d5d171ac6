package reflectors

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
)

// errListRequired makes a reflector list instead of streaming.
var errListRequired = errors.New("a list by quorum is required")

// listWatch lists and watches objects of the API server. It converts each page and each event when it arrives, so that the objects of a large cluster
// are never in memory at once.
type listWatch struct {
	*cache.ListWatch
	converter
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
		small, err := l.convert(in)
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
		out := newStream(l.resource, l.converter, l.read, initial)
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
	out := &convertedWatch{in: in, out: make(chan watch.Event, 64), stop: make(chan struct{}), converter: l.converter}
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
