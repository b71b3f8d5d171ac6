//go:build amd64

package node_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/waggle-net/waggle/test/nodekit"
)

// startTracer runs the tracer inside the node.
func startTracer(node *nodekit.Node, rule traceRule, env []string, stdin io.Reader, output io.Writer) (*exec.Cmd, *bufio.Reader, error) {
	text, err := json.Marshal(rule)
	if err != nil {
		return nil, nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer write.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(env, traceEnv+"="+string(text))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, output, output
	cmd.ExtraFiles = []*os.File{write}
	if err := node.Do(cmd.Start); err != nil {
		_ = read.Close()
		return nil, nil, err
	}
	return cmd, bufio.NewReader(read), nil
}

func readReport(from *bufio.Reader) (report traceReport, err error) {
	line, err := from.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &report)
	}
	if err != nil {
		err = fmt.Errorf("read the tracer's report: %w", err)
	}
	return report, err
}

// tracePlugin runs the plugin under a rule. The error is the error of the plugin, or reports that it was killed.
func tracePlugin(node *nodekit.Node, pod *nodekit.Pod, command string, rule traceRule) (traceReport, error) {
	env, stdin := pluginCall(node, pod, command, filepath.Join(node.StateDir(), "waggle.sock"))
	rule.Args = []string{filepath.Join(binDir, "waggle-cni")}
	var output bytes.Buffer
	cmd, reports, err := startTracer(node, rule, env, strings.NewReader(stdin), &output)
	if err != nil {
		return traceReport{}, err
	}
	report, err := readReport(reports)
	if end := cmd.Wait(); end != nil {
		return report, errors.Join(err, fmt.Errorf("%s: %w: %s", command, end, bytes.TrimSpace(output.Bytes())))
	}
	if command == "ADD" && err == nil {
		pod.Result = &types100.Result{}
		err = json.Unmarshal(output.Bytes(), pod.Result)
	}
	return report, err
}

// traceAgent follows the running agent under a rule until stop is called. stop returns the report of that time.
func traceAgent(node *nodekit.Node, rule traceRule) (stop func() (traceReport, error), err error) {
	rule.PID = node.AgentPID()
	end, hold, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	var output bytes.Buffer
	cmd, reports, err := startTracer(node, rule, nil, end, &output)
	_ = end.Close()
	if err != nil {
		_ = hold.Close()
		return nil, err
	}
	if line, err := reports.ReadString('\n'); line != "ready\n" {
		_ = hold.Close()
		return nil, fmt.Errorf("follow the agent: %q, %w, %w: %s", line, err, cmd.Wait(), &output)
	}
	return func() (traceReport, error) {
		_ = hold.Close()
		report, err := readReport(reports)
		if end := cmd.Wait(); end != nil && !report.Acted { // otherwise the tracer ends with the status of the agent
			err = errors.Join(err, fmt.Errorf("the tracer: %w: %s", end, &output))
		}
		return report, err
	}, nil
}

// A traced process works as it does without a tracer, and its changing calls are reported.
func TestPrivilegedTracer_ReportsChangingCalls(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	stop, err := traceAgent(node, traceRule{})
	if err != nil {
		t.Fatal(err)
	}
	pod := newPod(t, node, "web")
	plugin, err := tracePlugin(node, pod, "ADD", traceRule{})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := stop()
	if err != nil {
		t.Fatal(err)
	}
	for what, calls := range map[string][]string{"plugin": plugin.Calls, "agent": agent.Calls} {
		t.Logf("%s: %d: %s", what, len(calls), strings.Join(calls, ", "))
	}
	for _, want := range []string{"connect", "sendto", "write socket", "write result", "setns"} {
		if !strings.Contains(strings.Join(plugin.Calls, ","), want) {
			t.Errorf("the plugin made no call %q", want)
		}
	}
	for _, want := range []string{"create", "renameat", "bpf map_update", "sendto", "write socket"} {
		if !strings.Contains(strings.Join(agent.Calls, ","), want) {
			t.Errorf("the agent made no call %q", want)
		}
	}
	if err := pod.Detach(t.Context()); err != nil {
		t.Error(err)
	}
}
