package ciliumendpointslices

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/leaderwork"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// controller writes slices while this replica leads.
type controller struct{ params }

func (c *controller) run(ctx context.Context, health cell.Health) error {
	err := leaderwork.Run(ctx, c.DB, c.Leadership,
		func(leading context.Context) error { return newTerm(c.params).run(leading, health) },
		func() error {
			health.OK("another replica leads")
			return nil
		})
	if err != nil {
		health.Degraded("write CiliumEndpointSlices", err)
	}
	return err
}

// term is the state of one period of leadership. It is filled from the existing objects.
type term struct {
	params
	limiter *rate.Limiter
	wake    chan struct{} // contains a token when there may be something to write

	mu          sync.Mutex // guards the following fields
	plan        *planner
	leftOut     map[string]error // reasons why CiliumEndpoints are in no slice, by "namespace/name"
	haveCEPs    bool             // the first list of CiliumEndpoints was applied
	haveCESs    bool
	complete    bool      // the slice CompleteSlice exists
	lastFailure failure   // last failed write of CompleteSlice
	calm        time.Time // CompleteSlice is not written before this time, because another program deletes slices
}

func newTerm(p params) *term {
	first := p.Settings.limit(0)
	return &term{params: p, limiter: rate.NewLimiter(rate.Limit(first.Limit), first.Burst), wake: make(chan struct{}, 1), plan: newPlanner(p.Settings.most),
		leftOut: map[string]error{}}
}

// run follows objects and writes slices until ctx ends or a follower fails.
func (t *term) run(ctx context.Context, health cell.Health) error {
	group, ctx := errgroup.WithContext(ctx)
	watched := func(name string, f func(context.Context) error) {
		group.Go(func() error {
			ctx, end := watchdog.With(ctx, name)
			defer end()
			return f(ctx)
		})
	}
	endpoints := &kubeapi.Follower[endpointEvent]{Client: t.Client, Resource: kubeapi.CiliumEndpoints, Read: t.readEndpoint, Replace: t.replaceEndpoints,
		Apply: t.applyEndpoint}
	existing := &kubeapi.Follower[sliceEvent]{Client: t.Client, Resource: kubeapi.CiliumEndpointSlices, Read: readSlice, Replace: t.replaceSlices, Apply: t.applySlice}
	watched("follow-ciliumendpoints", endpoints.Run)
	watched("follow-ciliumendpointslices", existing.Run)
	watched("write", t.write)
	watched("report", func(ctx context.Context) error { return t.report(ctx, health) })
	watchdog.Idle(ctx) // the goroutines have their own heartbeats
	return group.Wait()
}

// endpointEvent contains the properties of a CiliumEndpoint that slices need.
type endpointEvent struct {
	key    string
	uid    string
	sliced *k8sobjects.Sliced // nil without addresses, or when err is set
	digest uint64
	size   int
	err    error // reason why it cannot be in a slice
}

// readEndpoint returns no error for a malformed object, which must not stop the processing of other objects. The event contains the error instead.
func (t *term) readEndpoint(object runtime.Object) (e endpointEvent, _ error) {
	o, ok := object.(*ciliumv2.CiliumEndpoint)
	if !ok {
		return e, fmt.Errorf("unexpected object of type %T, want a CiliumEndpoint", object)
	}
	e.key, e.uid = o.Namespace+"/"+o.Name, string(o.UID)
	if e.sliced, e.err = k8sobjects.SlicedEndpoint(o); e.sliced == nil {
		return e, nil
	}
	entry := e.sliced.Entry()
	if e.digest, e.size = digest(&entry); e.size > entrySize {
		e.sliced, e.err = nil, fmt.Errorf("its entry has %d bytes, at most %d are allowed", e.size, entrySize)
	}
	return e, nil
}

// digest returns a hash of an entry, and the size of its JSON in bytes.
func digest(e *ciliumv2.SlicedEndpoint) (sum uint64, size int) {
	text, err := json.Marshal(e)
	if err != nil {
		panic(err) // no field can fail
	}
	h := fnv.New64a()
	_, _ = h.Write(text) // never fails
	return h.Sum64(), len(text)
}

func (t *term) applyEndpoint(kind watch.EventType, e endpointEvent) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.takeEndpoint(e, kind == watch.Deleted)
	t.awake()
	return nil
}

// takeEndpoint applies the state of one object. A malformed object keeps the entry of its last valid state, as in agents that read CiliumEndpoints. The caller
// must hold mu.
func (t *term) takeEndpoint(e endpointEvent, deleted bool) {
	last := t.plan.pods[e.key]
	delete(t.leftOut, e.key)
	switch {
	case deleted:
		t.plan.remove(e.key)
	case e.err != nil:
		if t.leftOut[e.key] = e.err; last != nil && last.UID() != e.uid {
			t.plan.remove(e.key)
		}
	case e.sliced == nil:
		t.plan.remove(e.key)
	default:
		t.plan.put(e.sliced, e.digest, e.size)
	}
}

func (t *term) replaceEndpoints(all []endpointEvent) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	listed := make(map[string]bool, len(all))
	clear(t.leftOut)
	for _, e := range all {
		listed[e.key] = true
		t.takeEndpoint(e, false)
	}
	for _, key := range slices.Sorted(maps.Keys(t.plan.pods)) {
		if !listed[key] {
			t.plan.remove(key)
		}
	}
	t.haveCEPs = true
	t.begin()
	return nil
}

// sliceEvent is a slice of the API server. A slice without the label of Waggle belongs to another program, and agents ignore it.
type sliceEvent struct {
	*storedSlice
	ours bool
}

func readSlice(object runtime.Object) (e sliceEvent, _ error) {
	o, ok := object.(*ciliumv2.CiliumEndpointSlice)
	if !ok {
		return e, fmt.Errorf("unexpected object of type %T, want a CiliumEndpointSlice", object)
	}
	return sliceEvent{look(o), isOurs(o)}, nil
}

func isOurs(o *ciliumv2.CiliumEndpointSlice) bool {
	return o.Labels[ciliumv2.ManagedByLabel] == ciliumv2.ManagedByUs
}

// look summarizes a slice of the API server.
func look(o *ciliumv2.CiliumEndpointSlice) *storedSlice {
	s := &storedSlice{name: o.Name, namespace: o.PodNamespace, uid: string(o.UID), version: o.ResourceVersion, digests: make(map[string]uint64, len(o.Endpoints))}
	s.number, _ = strconv.ParseUint(o.ResourceVersion, 10, 64)
	for i := range o.Endpoints {
		_, found := s.digests[o.Endpoints[i].Name]
		s.doubled = s.doubled || found
		s.digests[o.Endpoints[i].Name], _ = digest(&o.Endpoints[i])
	}
	return s
}

func (t *term) applySlice(kind watch.EventType, e sliceEvent) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch exists := e.ours && kind != watch.Deleted; {
	case e.name == ciliumv2.CompleteSlice:
		t.setComplete(exists)
	case !exists:
		if t.plan.gone(e.name, e.uid) {
			t.await()
		}
	default:
		t.plan.see(e.storedSlice)
	}
	t.awake()
	return nil
}

func (t *term) replaceSlices(all []sliceEvent) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ours []*storedSlice
	complete := false
	for _, e := range all {
		switch {
		case !e.ours:
		case e.name == ciliumv2.CompleteSlice:
			complete = true
		default:
			ours = append(ours, e.storedSlice)
		}
	}
	t.plan.list(ours)
	t.setComplete(complete)
	t.haveCESs = true
	t.begin()
	return nil
}

// setComplete records whether CompleteSlice exists. After its deletion by another program, all slices are checked again, because the program may delete them
// too. The caller must hold mu.
func (t *term) setComplete(exists bool) {
	if t.complete && !exists {
		t.plan.doubt()
		t.await()
	}
	t.complete = exists
}

// await delays the creation of CompleteSlice while another program deletes slices. The caller must hold mu.
func (t *term) await() {
	t.calm = time.Now().Add(calmTime)
	time.AfterFunc(calmTime, t.awake)
}

// calmTime is the minimum time between the last deletion of a slice by another program and the creation of CompleteSlice.
const calmTime = 10 * time.Second

// begin starts the planner once both lists were applied. The caller must hold mu.
func (t *term) begin() {
	if !t.plan.begun && t.haveCEPs && t.haveCESs {
		t.plan.begin()
	}
	t.awake()
}

func (t *term) awake() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}
