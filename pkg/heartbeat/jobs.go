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

// Loop has the job name of group g watched while run runs.
func Loop(g job.Group, name string, run job.OneShotFunc) job.OneShotFunc {
	watched, ok := g.(*group)
	if !ok {
		return run
	}
	return func(ctx context.Context, health cell.Health) error {
		l := watched.begin(name)
		defer l.end()
		l.work()
		return run(context.WithValue(ctx, key{}, l), health)
	}
}

// Timer has the timer name of group g watched: its runs, and that one begins at each interval. It is called when the
// group is filled, since a timer may fail to fire for the first time.
func Timer(g job.Group, name string, run job.TimerFunc, interval time.Duration) job.TimerFunc {
	watched, ok := g.(*group)
	if !ok {
		return run
	}
	l := watched.begin(name)
	l.rest(interval)
	return func(ctx context.Context) error {
		defer l.rest(interval)
		l.work()
		return run(context.WithValue(ctx, key{}, l))
	}
}

// Task has one piece of work watched that may take for as long as limit, beside others of the same name. It ends with end.
func Task(g job.Group, name string, limit time.Duration) (end func()) {
	watched, ok := g.(*group)
	if !ok {
		return func() {}
	}
	l := &loop{monitor: watched.monitor, name: watched.module + "/" + name, limit: limit / scale}
	l.work()
	watched.monitor.add(l)
	return l.end
}
