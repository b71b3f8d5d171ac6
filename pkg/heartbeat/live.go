package heartbeat

import (
	"context"
	"fmt"
	"time"
)

// remedy is what to do about whatever hangs.
const remedy = "restart the agent, running pods do not notice; its log says where the stacks of all goroutines are"

// Live is one line for people, and whether the process does what it should. It takes no lock and waits for nobody, except
// for the monitor itself when that has not looked for long: at most for two of its steps.
func (m *Monitor) Live(ctx context.Context) (line string, live bool) {
	wedges := m.Wedges()
	if at := m.stepped.Load(); at != nil && time.Since(*at) > idleLimit && !m.stepsAgain(ctx, at) {
		wedges = []Wedge{{What: "loop of the monitor hangs: no loop is judged", Since: *at, For: time.Since(*at)}}
	}
	if len(wedges) == 0 {
		return "", true
	}
	first := wedges[0]
	line = fmt.Sprintf("%s (since %s, %s): %s", first.What, first.Since.UTC().Format(time.RFC3339), first.For.Round(time.Second), remedy)
	if more := len(wedges) - 1; more > 0 {
		line = fmt.Sprintf("%s; and %d more", line, more)
	}
	return line, false
}

// stepsAgain waits for a step after the one at a time: a process that has just been continued answers before it has looked.
func (m *Monitor) stepsAgain(ctx context.Context, at *time.Time) bool {
	tick := time.NewTicker(Interval / 20)
	defer tick.Stop()
	for range 2 * 20 {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
		if m.stepped.Load() != at {
			return true
		}
	}
	return false
}
