//go:build amd64

package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/pkg/testseed"
	"github.com/waggle-net/waggle/test/nodekit"
)

// The agent is killed before each call that changes state while it serves an ADD or a DEL. Then it starts again, and the runtime sends DEL, or removes the
// namespace and sends nothing. No state remains, and another pod is not disturbed.
func TestPrivilegedCrash_AgentAtEachCall(t *testing.T) {
	t.Parallel()
	backAfterADD := testseed.New(t).IntN(2) == 0
	for _, runtimeReturns := range []bool{true, false} {
		for _, command := range []string{"ADD", "DEL"} {
			if !soaks() && (command == "ADD") != (runtimeReturns == backAfterADD) {
				continue // each command and each action of the runtime is covered once
			}
			t.Run(fmt.Sprintf("%s, the runtime comes back: %v", command, runtimeReturns), func(t *testing.T) {
				t.Parallel()
				node := startNode(t, nodekit.Options{AgentArgs: []string{slowLinkGC, "--endpoint-gc-interval=1s"}})
				other := addPod(t, node, "other")
				before := lasting(t, node)
				whole := followed(t, node, traceRule{}, newPod(t, node, "whole"), command)
				for _, at := range points(t, len(whole.Calls)) {
					t.Logf("call %d, %s", at, whole.Calls[at-1])
					pod, err := node.NewPod("served")
					if err != nil {
						t.Fatal(err)
					}
					followed(t, node, traceRule{At: at}, pod, command)
					if runtimeReturns {
						err = pod.Detach(t.Context())
					}
					if err := errors.Join(err, pod.Close()); err != nil {
						t.Errorf("call %d: %v", at, err)
					}
					eventuallyLasting(t, node, before)
				}
				if err := errors.Join(other.Check(t.Context()), nodekit.Ping(node.Host(), other.Addr(false), 56),
					other.Detach(t.Context())); err != nil {
					t.Error(err)
				}
				requireNothingClaimed(t, node)
			})
		}
	}
}

// followed lets the agent serve one command under a rule, and starts the agent again when the rule killed it.
func followed(t *testing.T, node *nodekit.Node, rule traceRule, pod *nodekit.Pod, command string) traceReport {
	t.Helper()
	if err := prepare(t, pod, command); err != nil {
		t.Fatal(err)
	}
	stop, err := traceAgent(node, rule)
	if err != nil {
		t.Fatal(err)
	}
	_, answer := tracePlugin(node, pod, command, traceRule{})
	report, err := stop()
	if err != nil {
		t.Fatal(err)
	}
	if !report.Acted {
		if answer != nil {
			t.Errorf("%v", answer)
		}
		if rule.At == 0 && command == "ADD" {
			if err := pod.Detach(t.Context()); err != nil {
				t.Error(err)
			}
		}
		return report
	}
	restart(t, node)
	return report
}

// restart starts a killed agent again.
func restart(t *testing.T, node *nodekit.Node) {
	t.Helper()
	if err := errors.Join(node.KillAgent(t.Context()), node.StartAgent()); err != nil {
		t.Fatal(err)
	}
	waitReady(t, node)
}

// The agent is killed repeatedly at points of its start; each time the next agent finishes the start.
func TestPrivilegedCrash_AgentWhileItStarts(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	before := lasting(t, node)
	// The agent begins only when the tracer is attached, so that the tracer sees its first calls as well.
	gate, script := filepath.Join(node.Dir, "gate"), filepath.Join(node.Dir, "followed-agent")
	text := fmt.Sprintf("#!/bin/sh\nread go < %s; exec %s/waggle-agent \"$@\"\n", gate, binDir)
	if err := errors.Join(unix.Mkfifo(gate, 0o600), os.WriteFile(script, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
	node.UseAgent(script)
	start := func(rule traceRule) traceReport {
		if err := errors.Join(node.KillAgent(t.Context()), node.StartAgent()); err != nil {
			t.Fatal(err)
		}
		stop, err := traceAgent(node, rule)
		if err := errors.Join(err, os.WriteFile(gate, []byte("go\n"), 0)); err != nil { // the write waits for the reader
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		_ = node.WaitReady(ctx) // fails when the agent ends
		report, stopped := stop()
		if err = errors.Join(stopped, ctx.Err()); !report.Acted {
			waitReady(t, node)
		}
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	calls := start(traceRule{}).Calls
	if len(calls) < 20 {
		t.Fatalf("a start made only the calls %v", calls)
	}
	random := testseed.New(t)
	for range times(t, 2, 4) {
		at := 1 + random.IntN(len(calls))
		report := start(traceRule{At: at})
		t.Logf("call %d of %d: killed %v", at, len(calls), report.Acted)
		pingBoth(t, a, b)
	}
	node.UseAgent("")
	restart(t, node)
	eventuallyLasting(t, node, before)
	c := addPod(t, node, "c")
	pingBoth(t, a, c)
	if err := errors.Join(a.Check(t.Context()), b.Check(t.Context())); err != nil {
		t.Error(err)
	}
}
