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
	fmt.Printf("%-48s %10s %10s %10s %s\n", fmt.Sprintf("and %.0f pods a second that come or go", rate), "", "", "", used)
	var obeyed latencies
	adds, err := m.attached(ctx, s.adds, func() (err error) {
		obeyed, err = m.verdicts(ctx, s.writes)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Println("ADD:", adds)
	add, start := adds.against(empty)
	fmt.Printf("ADD, p50, against the empty cluster: %.2f; a start of the plugin: %.2f\n", add, start)
	fmt.Println("a policy, from its write to the first packet with the new verdict:", obeyed.fromWrite)
	fmt.Println("a policy, from the answer to its write to the first packet with the new verdict:", obeyed.fromAnswer)
	return nil
}
