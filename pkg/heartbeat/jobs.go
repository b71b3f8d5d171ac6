package heartbeat

import (
	"context"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
)

// group is a module's job group that knows the monitor.
type group struct {
	job.Group
	monitor *Monitor
	module  string
}

// NewGroup makes the loops of a group known to m. A nil monitor watches nothing.
func NewGroup(g job.Group, m *Monitor, module cell.FullModuleID) job.Group {
	if m == nil {
		return g
	}
	return &group{g, m, module.String()}
}

func (g *group) begin(name string) *loop { return g.monitor.begin(g.module + "/" + name) }

// Add has run done once as the job name of group g, and watched. An error stands in the job's health.
func Add(g job.Group, name string, run job.OneShotFunc) {
	g.Add(job.OneShot(name, watched(g, name, run)))
}

// AddRetried is [Add] for what is done again after an error, at first after shortest, and never later than longest.
func AddRetried(g job.Group, name string, run job.OneShotFunc, shortest, longest time.Duration) {
	g.Add(job.OneShot(name, watched(g, name, run), job.WithRetry(-1, &job.ExponentialBackoff{Min: shortest, Max: longest})))
}

// AddVital is [Add] for what the process cannot do without: an error ends it.
func AddVital(g job.Group, name string, run job.OneShotFunc) {
	g.Add(job.OneShot(name, watched(g, name, run), job.WithShutdown()))
}

// AddTimer has run done at each interval as the job name of group g, and watched: its runs, and that one begins.
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

// Begin begins the loop name of group g for the goroutine that calls it: what [Add] does around a job. It ends with end.
func Begin(ctx context.Context, g job.Group, name string) (inner context.Context, end func()) {
	known, ok := g.(*group)
	if !ok {
		return ctx, func() {}
	}
	l := known.begin(name)
	l.work()
	return context.WithValue(ctx, key{}, l), l.end
}

// watchedTimer begins when the group is filled, since a timer may fail to fire for the first time.
func watchedTimer(g job.Group, name string, run job.TimerFunc, interval time.Duration) job.TimerFunc {
	known, ok := g.(*group)
	if !ok {
		return run
	}
	l := known.begin(name)
	l.rest(interval)
	return func(ctx context.Context) error {
		defer l.rest(interval)
		l.work()
		return run(context.WithValue(ctx, key{}, l))
	}
}

// Task has one piece of work watched that may take for as long as limit, beside others of the same name. It ends with end.
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
