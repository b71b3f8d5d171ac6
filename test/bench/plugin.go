package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waggle-net/waggle/test/nodekit"
)

// absentAgent measures the plugin's response times without a running agent: ADD waits for an agent that is being replaced and then fails, DEL succeeds
// immediately.
func (b *bench) absentAgent(ctx context.Context) error {
	node, err := b.startNode(ctx, nodekit.Options{})
	if err != nil {
		return err
	}
	defer node.Close()
	var pods []*nodekit.Pod
	for i := range b.atMost(10) {
		pod, err := node.AddPod(ctx, fmt.Sprintf("attached-%d", i))
		if err != nil {
			return err
		}
		pods = append(pods, pod) // all are removed with the node
	}
	if err := node.StopAgent(ctx); err != nil {
		return err
	}
	var adds, dels []time.Duration
	for i := range b.atMost(3) {
		pod, err := node.NewPod(fmt.Sprintf("refused-%d", i))
		if err != nil {
			return err
		}
		took, err := timed(func() error { return pod.Attach(ctx) })
		if err == nil {
			return errors.New("ADD succeeds without an agent")
		}
		adds = append(adds, took)
	}
	for _, pod := range pods {
		took, err := timed(func() error { return pod.Detach(ctx) })
		if err != nil {
			return err
		}
		dels = append(dels, took)
	}
	b.promised("ADD without an agent, until the plugin reports the failure", adds, addNoAgentBudget)
	b.promised("DEL without an agent", dels, delNoAgentBudget)
	return nil
}
