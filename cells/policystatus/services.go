package policystatus

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/waggle-net/waggle/pkg/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubeapi"
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
			row.Type, row.Selects = service.Type, policy.ServiceOf(service).Selects
		}
	}
	return row, nil
}

// serviceFinder finds a Service by its name.
type serviceFinder = func(policy.ServiceName) policy.Service

// findServices finds the Services of a snapshot. It is nil while they are not known.
func (p *params) findServices(txn statedb.ReadTxn) serviceFinder {
	if listed, _ := p.Services.Initialized(txn); !listed {
		return nil
	}
	return func(name policy.ServiceName) policy.Service {
		row, _, found := p.Services.Get(txn, serviceIndex.Query(name.String()))
		if !found || row.Type == "" {
			return policy.Service{}
		}
		return policy.ServiceOf(row)
	}
}

// upToDate reports whether a statement was made with the Services of a snapshot, or refers to none.
func (p *params) upToDate(txn statedb.ReadTxn, s *statement) bool {
	if len(s.services) == 0 || s.Valid == "" {
		return true
	}
	find := p.findServices(txn)
	return find != nil && s.meaning == meaningOf(find, s.services)
}

// meaningOf returns a digest of some Services, as far as policies depend on them.
func meaningOf(find serviceFinder, names []policy.ServiceName) [sha256.Size]byte {
	h := sha256.New()
	for _, name := range names {
		s := find(name)
		fmt.Fprintf(h, "%t %t %q\n", s.Found, s.External, s.Selects)
	}
	return [sha256.Size]byte(h.Sum(nil))
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
