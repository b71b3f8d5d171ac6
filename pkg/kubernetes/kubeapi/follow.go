package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// Follower converts the objects of one resource to rows. The goroutine of [Follower.Run] calls its functions one at a time.
type Follower[R any] struct {
	Client   *Client
	Resource Resource
	// Read returns the row of an object. It may keep the object.
	Read func(runtime.Object) (R, error)
	// Replace replaces all rows with the rows of a complete list.
	Replace func([]R) error
	// Apply handles one row that was added, modified or deleted.
	Apply func(watch.EventType, R) error
}

const (
	followPageSize = 500
	betweenWatches = time.Second // minimum time between the starts of two watches
	// betweenLists is the maximum pause before all objects are listed again, which costs an API server more than a watch. The first pause is
	// betweenWatches. It doubles while changes are lost sooner than this after a list.
	betweenLists = time.Minute
)

// errListAgain means that a watch cannot be resumed.
var errListAgain = errors.New("changes were lost")

// Run lists the objects of all namespaces and follows their changes until ctx ends, a request fails, or a function does.
func (f *Follower[R]) Run(ctx context.Context) error {
	for pause := time.Duration(0); ; {
		began := time.Now()
		rows, version, err := f.list(ctx)
		if err != nil {
			return err
		}
		if err := f.Replace(rows); err != nil {
			return err
		}
		if err := f.follow(ctx, version); !errors.Is(err, errListAgain) {
			return err
		}
		if time.Since(began) > betweenLists {
			pause = 0
		}
		pause = min(max(2*pause, betweenWatches), betweenLists)
		if err := wait(ctx, pause); err != nil {
			return err
		}
	}
}

// wait returns after d, or with an error when ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	watchdog.Idle(ctx)
	select {
	case <-time.After(d):
		watchdog.Busy(ctx)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// list reads a consistent list of all objects, page by page.
func (f *Follower[R]) list(ctx context.Context) (rows []R, version string, err error) {
	options := metav1.ListOptions{Limit: followPageSize}
	for {
		page := f.Resource.NewList()
		watchdog.Busy(ctx) // each page is a request
		if err := f.Client.List(ctx, f.Resource, "", options, page); err != nil {
			return nil, "", err
		}
		if err := meta.EachListItem(page, func(object runtime.Object) error {
			row, err := f.Read(object)
			rows = append(rows, row)
			return err
		}); err != nil {
			return nil, "", err
		}
		list, err := meta.ListAccessor(page)
		if err != nil {
			return nil, "", err
		}
		version = list.GetResourceVersion()
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return rows, version, nil
		}
	}
}

// follow applies changes from a version on, in consecutive watches, until one cannot be resumed.
func (f *Follower[R]) follow(ctx context.Context, version string) error {
	for {
		began := time.Now()
		w, err := f.Client.Watch(ctx, f.Resource, "", metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return errListAgain
		}
		if err != nil {
			return err
		}
		version, err = f.consume(ctx, w, version)
		w.Stop()
		if err != nil {
			return err
		}
		if err := wait(ctx, betweenWatches-time.Since(began)); err != nil {
			return err
		}
	}
}

// consume applies the events of one watch until it ends, and returns the version of the last event.
func (f *Follower[R]) consume(ctx context.Context, w watch.Interface, version string) (last string, err error) {
	for {
		watchdog.Idle(ctx)
		select {
		case <-ctx.Done():
			return version, ctx.Err()
		case event, open := <-w.ResultChan():
			watchdog.Busy(ctx)
			if !open {
				return version, nil
			}
			if event.Type == watch.Error {
				return version, errListAgain
			}
			object, err := meta.Accessor(event.Object)
			if err != nil {
				return version, fmt.Errorf("read an event about %s: %w", f.Resource, err)
			}
			version = object.GetResourceVersion()
			if event.Type == watch.Bookmark {
				continue
			}
			row, err := f.Read(event.Object)
			if err == nil {
				err = f.Apply(event.Type, row)
			}
			if err != nil {
				return version, err
			}
		}
	}
}
