package policystatus

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/leaderwork"
	"github.com/waggle-net/waggle/pkg/policy"
)

// follower makes statements about the objects of one resource while this replica leads.
type follower struct {
	params
	resource kubeapi.Resource
	groups   atomic.Pointer[policy.CIDRGroups] // known to this follower; policies of Cilium may refer to them
}

// kinds has the kind of policies of each resource.
var kinds = map[string]policy.Kind{
	kubeapi.NetworkPolicies.Plural:           policy.Kubernetes,
	kubeapi.CiliumNetworkPolicies.Plural:     policy.Cilium,
	kubeapi.CiliumClusterwidePolicies.Plural: policy.Clusterwide,
}

// run follows the objects whenever this replica leads, and deletes the rows after each loss of the lead.
func (f *follower) run(ctx context.Context, health cell.Health) error {
	err := leaderwork.Run(ctx, f.DB, f.Leadership,
		func(leading context.Context) error { return f.lead(leading, health) },
		func() error {
			health.OK("another replica leads")
			return f.replace(nil)
		})
	if err != nil {
		health.Degraded("follow "+f.resource.String(), err)
	}
	return err
}

// lead makes statements until ctx ends or a request fails.
func (f *follower) lead(ctx context.Context, health cell.Health) error {
	if f.resource.Plural == kubeapi.NetworkPolicies.Plural {
		return f.objects(health).Run(ctx)
	}
	return f.leadWithGroups(ctx, health)
}

func (f *follower) objects(health cell.Health) *kubeapi.Follower[*statement] {
	return &kubeapi.Follower[*statement]{Client: f.Client, Resource: f.resource, Apply: f.apply,
		Read: f.read,
		Replace: func(rows []*statement) error {
			if err := f.replace(rows); err != nil {
				return err
			}
			health.OK(fmt.Sprintf("%d objects", len(rows)))
			return f.fresh(rows...)
		}}
}

// environment returns an environment that yields the same problems as on agents, except for problems with the addresses of Services without a selector, because
// this role reads no EndpointSlices. Problems depend on the labels of identities, on the mode of L7 rules, and on the existence of a cluster name, but not on the
// name.
func (p *params) environment(groups *policy.CIDRGroups) policy.Environment {
	env := policy.Environment{Keeps: p.Keeps, Cluster: "any", AllowL7Ports: p.L7Mode == policy.AllowL7Ports, WithoutSlices: true, FamiliesUnknown: true}
	if groups != nil {
		env.CIDRGroups, env.GroupsUnread = *groups, *groups == nil
	}
	return env
}

// read makes a statement with the current groups and Services.
func (f *follower) read(object runtime.Object) (*statement, error) {
	known := f.groups.Load()
	row, err := evaluate(object, f.environment(known), f.knownServices(f.DB.ReadTxn()))
	if err == nil {
		row.known = known
	}
	return row, err
}

// apply changes one row.
func (f *follower) apply(change watch.EventType, row *statement) (err error) {
	txn := f.DB.WriteTxn(f.Table, f.Services)
	defer txn.Abort()
	if change == watch.Deleted {
		_, _, err = f.Table.Delete(txn, row)
	} else {
		err = f.put(txn, row)
	}
	if err != nil {
		return fmt.Errorf("record the status of %s: %w", row.Ref, err)
	}
	txn.Commit()
	return f.fresh(row)
}

// put writes a row if it differs from the existing one. A policy that refers to groups has no row while the groups are not known. The transaction must hold the
// table of Services as well: each of their changes is either in the statement, or [serviceEvaluator] finds the row when it reads the change.
func (f *follower) put(txn statedb.WriteTxn, row *statement) error {
	if len(row.groups) > 0 && *row.known == nil {
		_, _, err := f.Table.Delete(txn, row)
		return err
	}
	if !f.upToDate(txn, row) {
		row.retract()
	}
	if old, _, found := f.Table.Get(txn, refIndex.Query(row.Ref.String())); found {
		stated := old.Valid != "" // a row without a statement may be about a previous version of the object
		if stated && (old.covers(row) || old.equal(row) && !old.refersToServices() && !row.refersToServices()) {
			return nil
		}
		row.inheritStatus(old)
	}
	_, _, err := f.Table.Insert(txn, row)
	return err
}

// replace sets the rows of this resource to a list.
func (f *follower) replace(rows []*statement) error {
	txn := f.DB.WriteTxn(f.Table, f.Services)
	defer txn.Abort()
	listed := make(map[policy.Ref]bool, len(rows))
	var errs []error
	for _, row := range rows {
		listed[row.Ref] = true
		errs = append(errs, f.put(txn, row))
	}
	for row := range f.Table.All(txn) {
		if row.Ref.Kind == kinds[f.resource.Plural] && !listed[row.Ref] {
			_, _, err := f.Table.Delete(txn, row)
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("record the status of %s: %w", f.resource, err)
	}
	txn.Commit()
	return nil
}
