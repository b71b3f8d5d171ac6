package node_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waggle-net/waggle/test/nodekit"
)

// churn is a fake runtime that attaches and detaches pods, one after the other.
type churn struct {
	node            *nodekit.Node
	stop, done      chan struct{}
	attached, tried int
	errs            []error
}

func startChurn(t *testing.T, node *nodekit.Node) *churn {
	t.Helper()
	c := &churn{node: node, stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		for {
			select {
			case <-c.stop:
				return
			default:
				c.one(t)
			}
		}
	}()
	return c
}

// one acts as kubelet and a runtime do: an ADD that fails is followed by DEL and by another sandbox; DEL is repeated until it succeeds. A pod whose ADD
// succeeded can send at once.
func (c *churn) one(t *testing.T) {
	c.tried++
	pod, err := c.node.NewPod(fmt.Sprintf("churn-%d", c.tried))
	if err != nil {
		c.errs = append(c.errs, err)
		return
	}
	if err := pod.Attach(t.Context()); err == nil {
		c.attached++
		ipv6 := c.tried%2 == 0
		if err := errors.Join(nodekit.Ping(pod, pod.Gateway(ipv6), 56), patiently(func() error { return pod.Check(t.Context()) })); err != nil {
			c.errs = append(c.errs, fmt.Errorf("pod %s: %w", pod.Name, err))
		}
	}
	if err := errors.Join(patiently(func() error { return pod.Detach(t.Context()) }), pod.Close()); err != nil {
		c.errs = append(c.errs, fmt.Errorf("pod %s: %w", pod.Name, err))
	}
}

// patiently repeats a call that may fail while no agent runs.
func patiently(do func() error) error {
	for deadline := time.Now().Add(awaitFor); ; time.Sleep(100 * time.Millisecond) {
		if err := do(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func (c *churn) end(t *testing.T) {
	t.Helper()
	close(c.stop)
	<-c.done
	t.Logf("%d of %d pods that came and went were attached at the first attempt", c.attached, c.tried)
	if len(c.errs) > 0 {
		t.Errorf("%d faults, the first: %v", len(c.errs), errors.Join(c.errs[:min(len(c.errs), 10)]...))
	}
	if c.attached == 0 {
		t.Error("no pod was attached")
	}
}
