package main

import (
	"context"
	"fmt"
	"time"

	"github.com/waggle-net/waggle/test/bench/figures"
	"github.com/waggle-net/waggle/test/nodekit"
)

// restart measures an ADD whose agent is killed before or during the call. The agent is restarted immediately, as by a kubelet without back-off.
func (b *bench) restart(ctx context.Context) error {
	node, err := b.startNode(ctx, nodekit.Options{})
	if err != nil {
		return err
	}
	defer node.Close()
	for _, side := range []struct {
		name  string
		lead  time.Duration // time between the start of the ADD and the kill
		fails figures.Limit // an ADD whose agent is killed during the call may fail, and the runtime repeats it
	}{{"killed before it", 0, noneBudget}, {"killed 10 ms into it", 10 * time.Millisecond, unlimited}} {
		var took []time.Duration
		failed := 0
		for i := range b.rounds {
			one, err := addAcrossRestart(ctx, node, fmt.Sprintf("restart-%d-%d", side.lead, i), side.lead)
			if err != nil {
				return err
			}
			if one == 0 {
				failed++
				continue
			}
			took = append(took, one)
		}
		b.promised("ADD, agent "+side.name, took, addReplacedBudget)
		b.report(fmt.Sprintf("failed ADD of %d, agent %s", b.rounds, side.name), fmt.Sprint(failed), figures.Value{Number: float64(failed), Unit: "failed"}, side.fails)
	}
	return nil
}

// addAcrossRestart returns the duration of the ADD, or 0 if it failed.
func addAcrossRestart(ctx context.Context, node *nodekit.Node, name string, lead time.Duration) (took time.Duration, err error) {
	pod, err := node.NewPod(name)
	if err != nil {
		return 0, err
	}
	defer pod.Close()
	var attached error
	done := make(chan struct{})
	attach := func() {
		defer close(done)
		took, attached = timed(func() error { return pod.Attach(ctx) })
	}
	if lead > 0 {
		go attach()
		time.Sleep(lead)
	}
	if err := node.KillAgent(ctx); err != nil {
		return 0, err
	}
	if lead == 0 {
		go attach()
	}
	if err := node.StartAgent(); err != nil {
		return 0, err
	}
	<-done
	ready, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := node.WaitReady(ready); err != nil {
		return 0, err
	}
	if attached != nil {
		took = 0
	}
	return took, pod.Detach(ctx)
}
