package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

// stops measures the time from SIGTERM to the agent's exit: while idle, during ADDs and DELs, and during its start.
func (b *bench) stops(ctx context.Context) error {
	node, err := b.startNode(ctx, nodekit.Options{})
	if err != nil {
		return err
	}
	defer node.Close()
	var atRest, busy, starting stopTimes
	for range b.atMost(5) {
		if err := errors.Join(atRest.stop(ctx, node), node.StartAgent(), waitReady(ctx, node)); err != nil {
			return err
		}
	}
	for round := range b.atMost(6) {
		pause := []time.Duration{5 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond}[round%3]
		if err := busy.duringCalls(ctx, node, pause); err != nil {
			return err
		}
	}
	for round := range b.atMost(8) {
		if err := node.EndAgent(ctx, syscall.SIGTERM); err != nil {
			return err
		}
		if err := node.StartAgent(); err != nil {
			return err
		}
		time.Sleep(time.Duration(round) * 30 * time.Millisecond)
		if err := errors.Join(starting.stop(ctx, node), node.StartAgent(), waitReady(ctx, node)); err != nil {
			return err
		}
	}
	for _, s := range []struct {
		what  string
		times stopTimes
	}{{"at rest", atRest}, {fmt.Sprintf("with %d calls under way", 2*podsPerDirection), busy}, {"while it starts", starting}} {
		b.promised("SIGTERM to the end of the agent, "+s.what, s.times.took, stopBudget)
		b.report("ends before all loops had stopped, "+s.what, fmt.Sprint(s.times.cut), figures.Value{Number: float64(s.times.cut), Unit: "failed"}, noneBudget)
	}
	return nil
}

// stopTimes holds the durations for one situation.
type stopTimes struct {
	took []time.Duration
	cut  int // exits with code 1: a loop did not stop in time
}

func (s *stopTimes) stop(ctx context.Context, node *nodekit.Node) error {
	took, err := timed(func() error { return node.EndAgent(ctx, syscall.SIGTERM) })
	s.took = append(s.took, took)
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) {
		return err
	}
	if exit.ExitCode() == 1 { // a process that SIGTERM kills before it handles signals has no exit code
		s.cut++
	}
	return nil
}

// podsPerDirection is the number of pods that are attached, and detached, while the agent stops.
const podsPerDirection = 25

func (s *stopTimes) duringCalls(ctx context.Context, node *nodekit.Node, pause time.Duration) error {
	var added, deleted []*nodekit.Pod
	for i := range podsPerDirection {
		add, err := node.NewPod(fmt.Sprintf("added-%d", i))
		if err != nil {
			return err
		}
		defer add.Close()
		del, err := node.AddPod(ctx, fmt.Sprintf("deleted-%d", i))
		if err != nil {
			return err
		}
		defer del.Close()
		added, deleted = append(added, add), append(deleted, del)
	}
	var calls sync.WaitGroup
	for i := range podsPerDirection {
		calls.Go(func() { _ = added[i].Attach(ctx) }) // an interrupted call is repeated below, as by a runtime
		calls.Go(func() { _ = deleted[i].Detach(ctx) })
	}
	time.Sleep(pause)
	if err := s.stop(ctx, node); err != nil {
		return err
	}
	calls.Wait()
	if err := errors.Join(node.StartAgent(), waitReady(ctx, node)); err != nil {
		return err
	}
	for _, pod := range append(added, deleted...) {
		if err := pod.Detach(ctx); err != nil {
			return err
		}
	}
	return nil
}
