package loader

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/socketlboptions"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfmaps"
	"github.com/waggle-net/waggle/pkg/tables/bpfprograms"
	"github.com/waggle-net/waggle/pkg/version"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	firstReload = 250 * time.Millisecond // for a temporary lack of memory
	lastReload  = time.Minute            // an attempt takes some milliseconds in the verifier
)

// generationParams are the dependencies of generation.
type generationParams struct {
	cell.In

	Log       *slog.Logger
	Lifecycle cell.Lifecycle
	Jobs      job.Group
	DB        *statedb.DB
	Table     statedb.RWTable[bpfprograms.Program]
	Maps      statedb.Table[*bpfmaps.Map]
	Hooks     statedb.Table[*attachments.Attachment]
	Kernel    kernel
	SocketLB  socketlboptions.Options
}

// generation holds the programs of this build: all of them, or none while loading fails. The table attachments records which of them are attached.
type generation struct {
	params generationParams
	number uint64 // of the datapath of this build

	mu       sync.RWMutex       // guards programs
	programs map[string]program // empty until they are loaded; programs for a change of size are replaced once
}

func newGeneration(p generationParams) (*generation, error) {
	number, err := version.Generation()
	if err != nil {
		return nil, err
	}
	g := &generation{params: p, number: number}
	p.Lifecycle.Append(cell.Hook{OnStart: g.start, OnStop: g.stop})
	return g, nil
}

// start opens the kernel handles and loads the programs. A failure to load does not prevent the start of the agent: the programs of a previous run stay
// attached, the rows have the error, and a job retries.
func (g *generation) start(cell.HookContext) error {
	if err := g.params.Kernel.Pods.Open(); err != nil {
		return err
	}
	err := g.load(1)
	watchdog.Add(g.params.Jobs, "load-programs", func(ctx context.Context, health cell.Health) error { return g.retry(ctx, health, err) })
	return nil
}

// retry loads the programs until it succeeds, and then calls reload.
func (g *generation) retry(ctx context.Context, health cell.Health, err error) error {
	logged := ""
	for attempt, pause := 2, firstReload; err != nil; attempt, pause = attempt+1, min(2*pause, lastReload) {
		message := fmt.Sprintf("datapath generation %d cannot be loaded; programs of the previous run stay attached", g.number)
		health.Degraded(message, err)
		if err.Error() != logged { // once for each reason, not for each try
			logged = err.Error()
			g.params.Log.Warn("Programs cannot be loaded; programs of the previous run stay attached", "generation", g.number, "error", err)
		}
		if watchdog.Sleep(ctx, pause) != nil {
			return nil
		}
		err = g.load(attempt)
	}
	health.OK(fmt.Sprintf("datapath generation %d is loaded", g.number))
	return g.reload(ctx, health)
}

// load makes one attempt. Hooks see either all programs or none, and none before the protocol is one that this generation knows.
func (g *generation) load(attempt int) error {
	loaded, err := g.loadAll()
	if err != nil {
		err = fmt.Errorf("load datapath generation %d: %w", g.number, explain(err))
	}
	g.mu.Lock()
	g.programs = loaded
	g.mu.Unlock()
	g.publish(attempt, err)
	return err
}

func (g *generation) loadAll() (map[string]program, error) {
	if err := g.settleProtocol(); err != nil {
		return nil, err
	}
	loaded, err := g.params.Kernel.Programs.Load()
	if err != nil {
		return nil, err
	}
	ids := make([]any, 0, 2*len(loaded))
	for _, name := range programNames(g.params.SocketLB) {
		ids = append(ids, name, loaded[name].ID)
	}
	g.params.Log.Info("Loaded the programs", "generation", g.number, slog.Group("programs", ids...))
	return loaded, nil
}

// publish writes the table bpf-programs, which the controller watches.
func (g *generation) publish(attempt int, err error) {
	txn := g.params.DB.WriteTxn(g.params.Table)
	defer txn.Commit()
	for _, name := range programNames(g.params.SocketLB) {
		row := bpfprograms.Program{Name: name, Generation: g.number, Attempts: attempt}
		if p := g.program(name); p != nil {
			row.ID = p.ID
		}
		if err != nil {
			row.Error = err.Error()
		}
		_, _, _ = g.params.Table.Insert(txn, row)
	}
}

func (g *generation) stop(cell.HookContext) error {
	g.params.Kernel.Programs.Close()
	g.params.Kernel.Pods.Close()
	return nil
}

// program returns the program with this name, or nil while this generation is not loaded.
func (g *generation) program(name string) *program {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if p, found := g.programs[name]; found {
		return &p
	}
	return nil
}
