package crdcheck

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/waggle-net/waggle/pkg/kubernetes/crds"
	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
	"github.com/waggle-net/waggle/pkg/tables/sources"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// remedy installs missing and old definitions.
const remedy = "run: waggle install --only crds | kubectl apply -f -"

const (
	often  = 30 * time.Second // interval while a definition is not as wanted: an operator may be repairing it
	seldom = 10 * time.Minute // interval while all definitions are as wanted
	jitter = 0.5              // random extension of an interval, as a factor: agents that start together must not ask together
	// pause is the minimum time between the beginnings of two rounds. At the start, the first response changes the state of the API server; a second round at once
	// would take requests from the limit that the first lists of all tables share.
	pause = time.Second
)

type controller struct{ params }

func (c *controller) run(ctx context.Context, health cell.Health) error {
	options := loop.Options{Tables: []statedb.TableMeta{c.Servers}, Pause: pause}
	return loop.Run(ctx, c.DB, options, func(r *loop.Round) error {
		r.Watch(c.Servers)
		next := often
		if apiservers.AllUnreachable(r.Txn, c.Servers) {
			health.Degraded("the definitions of custom resources are unknown", errors.New("no API server responds"))
		} else {
			_, _, slices := c.Sources.Get(r.Txn, sources.ByTable("cilium-endpointslices"))
			r.Txn = nil // the requests of a round take long
			rows, err := c.ask(ctx, slices)
			if ctx.Err() != nil {
				return nil
			}
			if err := c.commit(rows); err != nil {
				return err
			}
			if report(health, rows, err) {
				next = seldom
			}
		}
		r.Within(wait.Jitter(next, jitter))
		return nil
	})
}

// ask reads the definitions one by one. A definition that cannot be read keeps its row. The agent needs the definition of CiliumEndpointSlices only
// while it reads slices.
func (c *controller) ask(ctx context.Context, slices bool) (rows []Definition, err error) {
	for _, name := range crds.NamesInCluster() {
		if name == kubeapi.CiliumEndpointSlices.String() && !slices {
			continue
		}
		row := Definition{Name: name, Want: crds.Version}
		var found metav1.PartialObjectMetadata
		watchdog.Busy(ctx)
		switch failed := c.Client.Get(ctx, kubeapi.CustomResourceDefinitions, "", name, &found); {
		case failed == nil:
			row.Found = found.Labels[crds.VersionLabel]
			row.State = compare(row.Found)
		case apierrors.IsNotFound(failed):
			row.State = Missing
		default:
			err = failed // errors of the other definitions have the same cause
			if before, _, known := c.Table.Get(c.DB.ReadTxn(), byName(name)); known {
				row = before
			} else {
				row.State = Unknown
			}
		}
		rows = append(rows, row)
	}
	return rows, err
}

// compare compares version numbers only: each version includes all previous ones.
func compare(found string) State {
	have, err := version.ParseGeneric(found)
	if err != nil {
		return Old
	}
	switch want := version.MustParseGeneric(crds.Version); {
	case have.LessThan(want):
		return Old
	case want.LessThan(have):
		return Newer
	}
	return OK
}

// commit writes the rows that differ.
func (c *controller) commit(list []Definition) error {
	txn := c.DB.WriteTxn(c.Table)
	defer txn.Abort()
	for _, row := range list {
		if err := rows.Put(txn, c.Table, byName(row.Name), row, rows.Identical); err != nil {
			return err
		}
	}
	txn.Commit()
	return nil
}

// report publishes the faults and the remedy as health, and reports whether all definitions are as wanted.
func report(health cell.Health, rows []Definition, failed error) (well bool) {
	names := map[State][]string{}
	for _, row := range rows {
		name := row.Name
		if row.State == Old {
			name = fmt.Sprintf("%s (version %q, want %s)", row.Name, row.Found, row.Want)
		}
		names[row.State] = append(names[row.State], name)
	}
	var faults []string
	for _, state := range []State{Missing, Old} {
		if len(names[state]) > 0 {
			faults = append(faults, fmt.Sprintf("%s: %s", state, strings.Join(names[state], ", ")))
		}
	}
	switch {
	case len(faults) > 0:
		health.Degraded("definitions of custom resources are missing or out of date", errors.New(strings.Join(faults, "; ")+"; "+remedy))
	case failed != nil:
		health.Degraded("the definitions of custom resources cannot be read", failed)
	default:
		health.OK(fmt.Sprintf("%d definitions are up to date", len(rows)))
		return true
	}
	return false
}
