package watchdog

import (
	"context"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
)

// group is a module's job group with its monitor.
type group struct {
	job.Group
	monitor *Monitor
	module  string
}

// NewGroup registers the loops of a group with m. A nil monitor watches nothing.
func NewGroup(g job.Group, m *Monitor, module cell.FullModuleID) job.Group {
	if m == nil {
		return g
	}
	return &group{g, m, module.String()}
}

func (g *group) begin(name string) *loop { return g.monitor.begin(g.module + "/" + name) }

// Add runs run once as the watched job name of group g. The job's health shows an error.
func Add(g job.Group, name string, run job.OneShotFunc) {
	g.Add(job.OneShot(name, watched(g, name, run)))
}

// AddRetried is [Add] with retries after an error, first after shortest, later after longest at most.
func AddRetried(g job.Group, name string, run job.OneShotFunc, shortest, longest time.Duration) {
	g.Add(job.OneShot(name, watched(g, name, run), job.WithRetry(-1, &job.ExponentialBackoff{Min: shortest, Max: longest})))
}

// AddVital is [Add] for a job that the process cannot work without: an error ends the process.
func AddVital(g job.Group, name string, run job.OneShotFunc) {
	g.Add(job.OneShot(name, watched(g, name, run), job.WithShutdown()))
}

// AddTimer runs run at each interval as the watched job name of group g. The monitor checks both the runs and their start.
func AddTimer(g job.Group, name string, run job.TimerFunc, interval time.Duration) {
	g.Add(job.Timer(name, watchedTimer(g, name, run, interval), interval))
}

func watched(g job.Group, name string, run job.OneShotFunc) job.OneShotFunc {
	return func(ctx context.Context, health cell.Health) error {
		ctx, end := Begin(ctx, g, name)
		defer end()
		return run(ctx, health)
	}
}

// Begin starts the loop name of group g for the calling goroutine, as [Add] does for a job. The caller must call end.
func Begin(ctx context.Context, g job.Group, name string) (inner context.Context, end func()) {
	known, ok := g.(*group)
	if !ok {
		return ctx, func() {}
	}
	l := known.begin(name)
	l.work()
	return context.WithValue(ctx, key{}, l), l.end
}

// watchedTimer starts the loop before the job runs, because already the first run may be missed. The job starts only after the start hooks of the cells before
// it, which take minutes if the kernel's verifier is slow.
func watchedTimer(g job.Group, name string, run job.TimerFunc, interval time.Duration) job.TimerFunc {
	known, ok := g.(*group)
	if !ok {
		return run
	}
	l := known.begin(name)
	l.rest(startLimit + interval)
	return func(ctx context.Context) error {
		defer l.rest(interval)
		l.work()
		return run(context.WithValue(ctx, key{}, l))
	}
}

// Task watches one task that may take limit at most, beside others with the same name. The caller must call end.
func Task(g job.Group, name string, limit time.Duration) (end func()) {
	known, ok := g.(*group)
	if !ok {
		return func() {}
	}
	l := &loop{monitor: known.monitor, name: known.module + "/" + name, limit: limit / scale}
	l.work()
	known.monitor.add(l)
	return l.end
}
