package watchdog

import (
	"context"
	"fmt"
	"time"
)

// remedy is the remedy of every stall.
const remedy = "restart the agent, which does not interrupt running pods; its log names the file with the stacks of all goroutines"

// Live returns one line of text and whether the process is responsive. It takes no table lock and waits only if the monitor has not stepped for long,
// for two steps at most.
func (m *Monitor) Live(ctx context.Context) (line string, live bool) {
	stalls := m.Stalls()
	if at := m.stepped.Load(); at != nil && time.Since(*at) > idleLimit && !m.stepsAgain(ctx, at) {
		stalls = []Stall{{What: "loop of the monitor hangs: no loop is checked", Since: *at, For: time.Since(*at)}}
	}
	if len(stalls) == 0 {
		return "", true
	}
	first := stalls[0]
	line = fmt.Sprintf("%s (since %s, %s): %s", first.What, first.Since.UTC().Format(time.RFC3339), first.For.Round(time.Second), remedy)
	if more := len(stalls) - 1; more > 0 {
		line = fmt.Sprintf("%s; and %d more", line, more)
	}
	return line, false
}

// stepsAgain waits for a step after the one at a time: a resumed process may be queried before its first step.
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
