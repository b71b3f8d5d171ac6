package policystatus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/policy"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

func newGroupFollower(p params) *objectFollower[*cilium.CIDRGroup] {
	return newObjectFollower(p, p.Groups, kubeapi.CiliumCIDRGroups, readGroup)
}

// readGroup reads a group as agents do. A group that agents cannot read has only a name and a problem.
func readGroup(object runtime.Object) (*cilium.CIDRGroup, error) {
	named, ok := object.(interface{ GetName() string })
	if !ok {
		return nil, fmt.Errorf("unexpected object of type %T in a list of groups", object)
	}
	name := named.GetName()
	row, err := k8sobjects.FromServer(object, "")
	if group, ok := row.(*cilium.CIDRGroup); ok {
		return group, nil
	}
	return &cilium.CIDRGroup{Name: name, Problems: []string{err.Error()}}, nil
}

// errGroupsChanged ends the follower of policies when a statement was made with outdated groups.
var errGroupsChanged = errors.New("groups have changed")

// fresh returns errGroupsChanged if a written statement depends on groups and was not made with the current ones.
func (f *follower) fresh(rows ...*statement) error {
	now := f.groups.Load()
	if slices.ContainsFunc(rows, func(row *statement) bool { return len(row.groups) > 0 && row.known != now }) {
		return errGroupsChanged
	}
	return nil
}

// betweenLists is the minimum time between two lists of all policies, because groups may change in quick succession.
const betweenLists = time.Second

// groupsTimeout is the timeout after which policies no longer wait for the lists of groups and Services, because the right to list them may be missing.
// Policies that refer to groups or Services have no statement until these are listed.
const groupsTimeout = 3 * time.Second

// leadWithGroups makes statements about policies that may refer to groups. When a group changes to which a policy refers, it lists the policies again, because
// their objects are not kept.
func (f *follower) leadWithGroups(ctx context.Context, health cell.Health) error {
	watchdog.Idle(ctx) // the follower of policies reports when it is busy
	patient, end := context.WithTimeout(ctx, groupsTimeout)
	txn := f.DB.ReadTxn()
	_, groups := f.Groups.Initialized(txn)
	_, services := f.Services.Initialized(txn)
	for _, listed := range [...]<-chan struct{}{groups, services} {
		select {
		case <-listed:
		case <-patient.Done():
		}
	}
	end()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for {
		known, changed := f.readGroups()
		f.groups.Store(&known)
		began := time.Now()
		round, end := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- f.objects(health).Run(round) }()
		again, err := f.awaitGroups(known, changed, ended)
		end()
		if !again {
			return err
		}
		if err == nil {
			<-ended
		}
		watchdog.IdleFor(ctx, betweenLists) // the pause is no stall
		select {
		case <-time.After(betweenLists - time.Since(began)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// awaitGroups returns when the policies must be listed again, or when their follower has ended, with the follower's error.
func (f *follower) awaitGroups(known policy.CIDRGroups, changed <-chan struct{}, ended <-chan error) (again bool, err error) {
	for {
		select {
		case err := <-ended:
			return errors.Is(err, errGroupsChanged), err
		case <-changed:
		}
		var now policy.CIDRGroups
		now, changed = f.readGroups()
		f.groups.Store(&now) // before the check: a statement that is written after it detects that it is outdated
		if known == nil && now != nil || f.refersTo(moved(known, now)) {
			return true, nil
		}
		known = now
	}
}

// readGroups returns the groups, or nil while they are not known, and a channel that closes when they change.
func (f *follower) readGroups() (policy.CIDRGroups, <-chan struct{}) {
	txn := f.DB.ReadTxn()
	if done, listed := f.Groups.Initialized(txn); !done {
		return nil, listed
	}
	rows, changed := f.Groups.AllWatch(txn)
	known := policy.CIDRGroups{}
	for row := range rows {
		known[row.Name] = row
	}
	return known, changed
}

// moved returns the previous and the current version of each group that differs.
func moved(before, now policy.CIDRGroups) (list []*cilium.CIDRGroup) {
	for name, old := range before {
		if is := now[name]; is == nil || !is.Equal(old) {
			list = append(list, old)
		}
	}
	for name, is := range now {
		if old := before[name]; old == nil || !is.Equal(old) {
			list = append(list, is)
		}
	}
	return list
}

// refersTo reports whether a policy of this resource refers to one of some groups.
func (f *follower) refersTo(groups []*cilium.CIDRGroup) bool {
	if len(groups) == 0 {
		return false
	}
	for row := range f.Table.All(f.DB.ReadTxn()) {
		if row.Ref.Kind == kinds[f.resource.Plural] && slices.ContainsFunc(groups, (&policy.Policy{Groups: row.groups}).RefersTo) {
			return true
		}
	}
	return false
}
