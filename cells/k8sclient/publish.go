package k8sclient

import (
	"context"
	"errors"
	"log/slog"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/heartbeat"
	"github.com/waggle-net/waggle/pkg/kubeapi"
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

// probe asks the server whether it is ready while that is in doubt.
func (p params) probe(ctx context.Context, _ cell.Health) error { return p.Client.Run(ctx) }

// publish copies what the client knows into the table.
func (p params) publish(ctx context.Context, health cell.Health) error {
	away := false
	for {
		heartbeat.Busy(ctx)
		rows, changed := p.Client.Servers()
		p.explain(rows)
		p.write(rows)
		p.report(rows, health)
		away = p.log(rows, away)
		heartbeat.Idle(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// explain adds to the error of an address that nobody typed how to type one: an update without --k8s-api-server brings agents
// here that go on with the copy on disk, and should say why.
func (p params) explain(rows []apiservers.Server) {
	for i := range rows {
		if p.Settings.byService && rows[i].Reachable == apiservers.No && rows[i].Error != "" {
			rows[i].Error += " (this is the Service kubernetes, which needs kube-proxy; where there is none, say with --k8s-api-server where the API server is)"
		}
	}
}

// write inserts the rows that differ. Addresses never go away while the agent runs.
func (p params) write(rows []apiservers.Server) {
	txn := p.DB.WriteTxn(p.Table)
	defer txn.Abort()
	for _, row := range rows {
		if old, _, found := p.Table.Get(txn, apiservers.ByServer(row.Server)); found && old == row {
			continue
		}
		if _, _, err := p.Table.Insert(txn, row); err != nil {
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
			health.Degraded(row.Server+" is of no use", errors.New(row.Error))
		case row.Reachable == apiservers.Yes:
			health.OK(row.Server + " answers")
		default:
			health.OK(row.Server + " was not asked yet")
		}
	}
}

// log writes one line when the API server goes away and one when it is back. The cluster role has nothing but its log to say it with.
func (p params) log(rows []apiservers.Server, away bool) bool {
	for _, row := range rows {
		switch {
		case !row.Active:
		case row.Error != "" && !away:
			p.Log.Warn("The API server is of no use, and is tried again", "server", row.Server, "error", row.Error)
			away = true
		case row.Well() && away:
			p.Log.Info("The API server answers again", "server", row.Server)
			away = false
		}
	}
	return away
}
