package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// churn measures the agent while pods are created and deleted on other nodes: its resources, the duration of ADD, and the latency of policy changes.
func (s sizes) churn(ctx context.Context, m *measurement, empty attachments) (err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var events atomic.Int64
	ended := make(chan error, 1)
	go func() {
		defer stop()
		ended <- s.cluster.Churn(ctx, m.cluster.Config(), s.events, &events)
	}()
	defer func() {
		stop()
		err = errors.Join(err, <-ended)
	}()
	began, before := time.Now(), events.Load()
	used, err := m.watch()
	if err != nil {
		return err
	}
	if ctx.Err() != nil { // the error of the churn is returned below
		return nil
	}
	rate := float64(events.Load()-before) / time.Since(began).Seconds()
	m.sheet.add(row{what: "pods elsewhere that come or go", shown: fmt.Sprintf("%.1f/s", rate), value: rate, unit: eventRate, budget: s.large(churnRateBudget)})
	m.addUsage("the large cluster with churn", used, s.large(largeMemoryBudget), s.large(churnCPUBudget))
	var obeyed latencies
	took, err := m.attached(ctx, s.adds, func() (err error) {
		obeyed, err = m.verdicts(ctx, s.writes)
		return err
	})
	if err != nil {
		return err
	}
	m.sheet.addMedians("ADD with churn, against the empty cluster", took.adds, empty.adds, s.large(churnADDBudget))
	m.sheet.addMedians("start of the plugin with churn, against the empty cluster", took.starts, empty.starts, unlimited)
	m.sheet.addTails("policy written to verdict with churn", obeyed.fromWrite, s.large(verdictBudget))
	m.sheet.addTails("and from the answer of the API server", obeyed.fromAnswer, unlimited)
	m.sheet.addTails("policy written to its event in another watch", obeyed.control, unlimited)
	return nil
}
