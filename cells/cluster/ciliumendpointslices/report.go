package ciliumendpointslices

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cilium/hive/cell"

	"github.com/waggle-net/waggle/pkg/kubernetes/ciliumv2"
	"github.com/waggle-net/waggle/pkg/printable"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

const (
	reportEvery = time.Second // minimum interval between reports
	lagLimit    = time.Minute // age of a queued slice from which the lag is reported
	maxReported = 3           // maximum number of objects in a report
)

// report updates the health until ctx ends.
func (t *term) report(ctx context.Context, health cell.Health) error {
	for last := ""; ; {
		text, problem := t.evaluate()
		if now := fmt.Sprint(text, problem); now != last {
			last = now
			if problem != nil {
				health.Degraded(text, problem)
			} else {
				health.OK(text)
			}
		}
		if err := watchdog.Sleep(ctx, reportEvery); err != nil {
			return err
		}
	}
}

// evaluate returns the number of pending writes as text, and the most important problem; nil without a problem.
func (t *term) evaluate() (text string, problem error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.plan
	if !p.begun {
		return "waiting for CiliumEndpoints and CiliumEndpointSlices", nil
	}
	failed := map[string]error{}
	waiting := len(p.queue) + len(p.last)
	for s, f := range p.failures {
		if failed[s.name] = f.err; f.waits {
			waiting++
		}
	}
	text = fmt.Sprintf("%d pods in %d slices, %d slices to be written", len(p.pods), len(p.slices), waiting)
	switch {
	case len(failed) > 0:
		return fmt.Sprintf("%s, %d of them after a failure", text, len(failed)), some(failed)
	case !t.complete && t.lastFailure.err != nil:
		return text, fmt.Errorf("%s: %w", ciliumv2.CompleteSlice, t.lastFailure.err)
	case late(p.queue) && !t.complete:
		return text, fmt.Errorf("agents read CiliumEndpoints until %d slices have been written once; --ces-rate-limits limits the rate", len(p.unwritten))
	case late(p.queue):
		return text, errors.New("changes of pods reach other nodes late: raise --ces-rate-limits, and --k8s-client-qps if it is lower")
	case late(p.last):
		return text, fmt.Errorf("changes of pods of %d nodes are delayed because each node has more than %d per second: %s", len(p.over), budgetRate,
			printable.Text(strings.Join(first(maps.Keys(p.over)), ", ")))
	case len(t.leftOut) > 0:
		return fmt.Sprintf("%s; changes of %d CiliumEndpoints are in no slice", text, len(t.leftOut)), some(t.leftOut)
	}
	return text, nil
}

func late(queue []*slice) bool { return len(queue) > 0 && time.Since(queue[0].since) >= lagLimit }

// some joins the errors of the first names.
func some(all map[string]error) error {
	var errs []error
	for _, name := range first(maps.Keys(all)) {
		errs = append(errs, errors.New(printable.Text(name+": "+all[name].Error())))
	}
	return errors.Join(errs...)
}

// first returns the first maxReported names in sorted order. It does not sort all names, because there may be as many as pods.
func first(names iter.Seq[string]) (list []string) {
	for name := range names {
		if at, _ := slices.BinarySearch(list, name); at < maxReported {
			list = slices.Insert(list, at, name)
			list = list[:min(len(list), maxReported)]
		}
	}
	return list
}
