package kubeapi

import (
	"context"
	"time"
)

// gathering is the key of the interval in a context.
type gathering struct{}

// Gathering is a context for watches whose events gather for an interval: in a large cluster one comes every few milliseconds, and to be woken for
// each costs more than to read it. An event after a pause of that length is read at once, and what there is to read without waiting is never held
// back.
func Gathering(ctx context.Context, interval time.Duration) context.Context {
	return context.WithValue(ctx, gathering{}, interval)
}

// gather holds the answer to one request back.
type gather struct {
	interval time.Duration
	last     time.Time       // when something was read that had to be waited for
	ended    <-chan struct{} // closed with the request
}

func gatherOf(ctx context.Context) *gather {
	interval, wanted := ctx.Value(gathering{}).(time.Duration)
	if !wanted {
		return nil
	}
	return &gather{interval: interval, ended: ctx.Done()}
}

// waited is how long a read takes, at least, that does not find what it reads.
const waited = time.Millisecond

// hold waits after a read that began at a time, if that had to wait and the last one that had to is not an interval ago.
func (g *gather) hold(began time.Time) {
	if g == nil || time.Since(began) < waited {
		return
	}
	if rest := g.interval - time.Since(g.last); rest > 0 {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-g.ended:
		}
	}
	g.last = time.Now()
}
