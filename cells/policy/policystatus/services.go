package policystatus

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

func newServiceFollower(p params) *objectFollower[*k8s.Service] {
	return newObjectFollower(p, p.Services, kubeapi.Services, readService)
}

// readService reads the fields on which policies depend. The row of a Service that agents cannot read has no type: for policies the Service does not exist. A
// selector with more labels than policies support is not kept.
func readService(object runtime.Object) (*k8s.Service, error) {
	named, ok := object.(interface {
		GetName() string
		GetNamespace() string
	})
	if !ok {
		return nil, fmt.Errorf("unexpected object of type %T in a list of Services", object)
	}
	row := &k8s.Service{Namespace: named.GetNamespace(), Name: named.GetName()}
	if read, err := k8sobjects.FromServer(object, ""); err == nil {
		if service, ok := read.(*k8s.Service); ok {
			row.Type, row.Selects, row.Labelled = service.Type, policy.ServiceOf(service).Selects, service.Labelled
		}
	}
	return row, nil
}

// knownServices are the Services of a snapshot. The type is not safe for concurrent use.
type knownServices struct {
	table      statedb.Table[*k8s.Service]
	txn        statedb.ReadTxn
	namespaces map[string]*knownNamespace // read so far
}

// knownNamespace describes the names and labels of the Services in a namespace.
type knownNamespace struct {
	digest [sha256.Size]byte
	bytes  int
}

// knownServices returns the Services of a snapshot, nil while they are not known.
func (p *params) knownServices(txn statedb.ReadTxn) *knownServices {
	if listed, _ := p.Services.Initialized(txn); !listed {
		return nil
	}
	return &knownServices{table: p.Services, txn: txn, namespaces: map[string]*knownNamespace{}}
}

// find finds a Service by its name. EndpointSlices are not read, so a Service without a selector has no addresses.
func (k *knownServices) find(name policy.ServiceName) policy.Service {
	row, _, found := k.table.Get(k.txn, serviceIndex.Query(name.String()))
	if !found || row.Type == "" {
		return policy.Service{}
	}
	return policy.ServiceOf(row)
}

// in yields the names of the Services in a namespace, sorted, and their labels.
func (k *knownServices) in(namespace string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for row := range k.table.Prefix(k.txn, serviceIndex.Query(namespace+"/")) {
			if row.Type != "" && !yield(row.Name, row.Labelled) {
				return
			}
		}
	}
}

// namespace describes a namespace, which it reads once.
func (k *knownServices) namespace(namespace string) *knownNamespace {
	if known := k.namespaces[namespace]; known != nil {
		return known
	}
	known, h := &knownNamespace{}, sha256.New()
	for name, labels := range k.in(namespace) {
		fmt.Fprintf(h, "%q %q\n", name, labels)
		known.bytes += len(name) + len(labels)
	}
	known.digest = [sha256.Size]byte(h.Sum(nil))
	k.namespaces[namespace] = known
	return known
}

// meaningOf returns a digest of the Services to which a policy refers, as far as the policy depends on them.
func (k *knownServices) meaningOf(s *statement) [sha256.Size]byte {
	h := sha256.New()
	for _, name := range s.services {
		service := k.find(name)
		fmt.Fprintf(h, "%t %t %q\n", service.Found, service.External, service.Selects)
	}
	for _, namespace := range s.namespaces {
		fmt.Fprintf(h, "%x\n", k.namespace(namespace).digest)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// bytesOf returns the length of the selectors and labels of these Services.
func (k *knownServices) bytesOf(s *statement) (n int) {
	for _, name := range s.services {
		n += len(k.find(name).Selects)
	}
	for _, namespace := range s.namespaces {
		n += k.namespace(namespace).bytes
	}
	return n
}

// upToDate reports whether a statement was made with the Services of a snapshot, or refers to none.
func (p *params) upToDate(txn statedb.ReadTxn, s *statement) bool {
	if !s.refersToServices() || s.Valid == "" {
		return true
	}
	known := p.knownServices(txn)
	return known != nil && s.meaning == known.meaningOf(s)
}

// digest returns a digest of the parts of an object that its statement depends on.
func digest(o *cilium.Policy) [sha256.Size]byte {
	h := sha256.New()
	mode, found := o.Annotations[policy.ModeAnnotation]
	fmt.Fprintf(h, "%t %q %d %d ", found, mode, len(o.Spec), len(o.Specs))
	for _, rules := range []json.RawMessage{o.Spec, o.Specs} {
		_, _ = h.Write(rules)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// get reads the current version of a policy of Cilium's.
func (p *params) get(ctx context.Context, ref policy.Ref) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	object := resourceOf(ref).New()
	err := p.Client.Get(ctx, resourceOf(ref), ref.Namespace, ref.Name, object)
	return object, err
}
