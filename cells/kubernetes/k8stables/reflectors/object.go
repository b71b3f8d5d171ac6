package reflectors

import (
	"fmt"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
)

// object is the row of an API object with the metadata that a reflector needs. It implements [runtime.Object] and [metav1.Object]. A reflector holds all
// objects of a resource until its first list is complete, so an object is small.
type object struct {
	metav1.Object   // implements the other methods; noMetadata except in a bookmark
	namespace, name string
	uid             types.UID
	version         string
	row             k8sobjects.Row // nil when err is set, unless it is of type [k8sobjects.Partly]
	err             error          // why there is no row, or which part of the object is missing in it
	before          []event        // events that arrived together with this one, see [stream]
}

// noMetadata is shared by all objects and never changed.
var noMetadata = &metav1.ObjectMeta{}

// GetNamespace implements metav1.Object.
func (o *object) GetNamespace() string { return o.namespace }

// GetName implements metav1.Object.
func (o *object) GetName() string { return o.name }

// GetUID implements metav1.Object.
func (o *object) GetUID() types.UID { return o.uid }

// GetResourceVersion implements metav1.Object.
func (o *object) GetResourceVersion() string { return o.version }

// GetObjectKind implements runtime.Object.
func (o *object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Rows are immutable, so the copies share them.
func (o *object) DeepCopyObject() runtime.Object {
	out := *o
	return &out
}

func (o *object) key() string {
	if o.namespace == "" {
		return o.name
	}
	return o.namespace + "/" + o.name
}

// converter converts objects of the API server into rows.
type converter struct {
	nodeName string
	db       *statedb.DB
	table    tables.Table // a converted object shares the equal row of this table; nil for none
}

// convert converts an object into a row and keeps no other part of it.
func (c converter) convert(in runtime.Object) (*object, error) {
	m, err := meta.Accessor(in)
	if err != nil {
		return nil, fmt.Errorf("read the metadata of %T: %w", in, err)
	}
	out := &object{Object: noMetadata, namespace: k8sobjects.Intern(m.GetNamespace()), name: m.GetName(), uid: m.GetUID(), version: m.GetResourceVersion()}
	out.row, out.err = k8sobjects.FromServer(in, c.nodeName)
	if out.row != nil && c.table != nil {
		out.row = c.table.Share(c.db.ReadTxn(), out.row)
	}
	return out, nil
}

// convertEvent converts the object of an event. A bookmark keeps its version and its annotations, one of which marks the end of the initial events.
func (c converter) convertEvent(event watch.Event) (watch.Event, error) {
	switch event.Type {
	case watch.Added, watch.Modified, watch.Deleted:
		converted, err := c.convert(event.Object)
		if err != nil {
			return event, err
		}
		event.Object = converted
	case watch.Bookmark:
		if m, ok := event.Object.(metav1.Object); ok {
			event.Object = &object{Object: &metav1.ObjectMeta{Annotations: m.GetAnnotations()}, version: m.GetResourceVersion()}
		}
	}
	return event, nil
}
