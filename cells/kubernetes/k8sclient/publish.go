package k8sclient

import (
	"context"
	"errors"
	"log/slog"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/kubernetes/kubeapi"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/rows"
	"github.com/waggle-net/waggle/pkg/tables/apiservers"
)

type params struct {
	cell.In

	Log      *slog.Logger
	DB       *statedb.DB
	Table    statedb.RWTable[apiservers.Server]
	Client   *kubeapi.Client
	Settings settings
}

// probe requests /readyz of a server whose state is in doubt.
func (p params) probe(ctx context.Context, _ cell.Health) error { return p.Client.Run(ctx) }

// publish copies the state of the servers from the client to the table.
func (p params) publish(ctx context.Context, health cell.Health) error {
	unavailable := false
	return loop.Run(ctx, p.DB, loop.Options{}, func(r *loop.Round) error {
		rows, changed := p.Client.Servers()
		r.Changed.Add(changed)
		p.explain(rows)
		p.write(rows)
		p.report(rows, health)
		unavailable = p.log(rows, unavailable)
		return nil
	})
}

// explain adds the remedy to the error of an address that is not configured: an update without --k8s-api-server makes agents use the Service and keep
// the rows of the copy on disk, and the error must show the cause.
func (p params) explain(rows []apiservers.Server) {
	for i := range rows {
		if p.Settings.byService && rows[i].Reachable == apiservers.No && rows[i].Error != "" {
			rows[i].Error += " (this is the Service kubernetes, which needs kube-proxy; without kube-proxy, set --k8s-api-server to the address of the API server)"
		}
	}
}

// write inserts changed rows. Addresses are never removed while the agent runs.
func (p params) write(list []apiservers.Server) {
	txn := p.DB.WriteTxn(p.Table)
	defer txn.Abort()
	for _, row := range list {
		if err := rows.Put(txn, p.Table, apiservers.ByServer(row.Server), row, rows.Identical); err != nil {
			p.Log.Error("Row of an API server cannot be stored", "server", row.Server, "error", err)
		}
	}
	txn.Commit()
}

func (p params) report(rows []apiservers.Server, health cell.Health) {
	for _, row := range rows {
		switch {
		case !row.Active:
		case row.Error != "":
			health.Degraded(row.Server+" is unusable", errors.New(row.Error))
		case row.Reachable == apiservers.Yes:
			health.OK(row.Server + " responds")
		default:
			health.OK(row.Server + " has not been contacted yet")
		}
	}
}

// log logs when the API server becomes unusable and when it answers again. The log is the only output of the cluster role for this.
func (p params) log(rows []apiservers.Server, unavailable bool) bool {
	for _, row := range rows {
		switch {
		case !row.Active:
		case row.Error != "" && !unavailable:
			p.Log.Warn("The API server is unusable, and is retried", "server", row.Server, "error", row.Error)
			unavailable = true
		case row.Well() && unavailable:
			p.Log.Info("The API server responds again", "server", row.Server)
			unavailable = false
		}
	}
	return unavailable
}
