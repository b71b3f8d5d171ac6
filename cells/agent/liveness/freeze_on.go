//go:build freeze

package liveness

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/watchdog"
)

// freezeFile in the state directory lists the names of frozen loops and tables, one a line.
const freezeFile = "freeze"

// freeze blocks each loop whose name is in the file, and holds a write transaction on each table in it.
func freeze(p params) {
	if p.Settings.StateDir == "" {
		return
	}
	path := filepath.Join(p.Settings.StateDir, freezeFile)
	frozen := func(name string) bool {
		content, err := os.ReadFile(path)
		return err == nil && slices.Contains(strings.Split(string(content), "\n"), name)
	}
	p.Monitor.Fault = func(loop string) {
		for frozen("loop " + loop) {
			time.Sleep(5 * time.Millisecond)
		}
	}
	watchdog.Add(p.Jobs, "freeze-tables", func(ctx context.Context, _ cell.Health) error {
		watchdog.Idle(ctx) // this loop must not count as a stall
		for ctx.Err() == nil {
			for _, table := range p.DB.GetTables(p.DB.ReadTxn()) {
				if !frozen("table " + table.Name()) {
					continue
				}
				txn := p.DB.WriteTxn(table)
				for frozen("table " + table.Name()) {
					time.Sleep(5 * time.Millisecond)
				}
				txn.Abort()
			}
			time.Sleep(20 * time.Millisecond)
		}
		return nil
	})
}
